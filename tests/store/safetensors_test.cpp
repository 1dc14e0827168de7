#include "store/safetensors.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "store/files.h"
#include "temporary_folder.h"

namespace scalewright {
namespace {

const std::vector<at::ScalarType> kDtypes = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,          at::kInt,
                                             at::kShort,  at::kChar,  at::kByte, at::kBool,     at::kFloat8_e4m3fn, at::kFloat8_e5m2};

/// Bytes of a tensor as a comparable string: float8 has no equality in ATen, and NaNs must compare by bits.
std::string bits(const at::Tensor& x) {
  const at::Tensor dense = x.contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

at::Tensor sample(at::ScalarType dtype, at::IntArrayRef shape) { return at::arange(c10::multiply_integers(shape)).remainder(101).to(dtype).reshape(shape); }

TEST(Safetensors, EveryDtypeAndShapeComesBackBitForBit) {
  const TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors;
  for (const auto dtype : kDtypes) {
    const std::string name = dtype_name(dtype);
    EXPECT_EQ(dtype_from_name(name, "here"), dtype);
    // Odd sizes put the tensors after them at odd offsets: reading must not depend on alignment.
    for (const auto& shape : std::vector<std::vector<int64_t>>{{3}, {}, {2, 5}, {0}, {4, 0, 3}, {1, 1, 7}}) {
      tensors[fmt::format("{}.{}.{}", name, shape.size(), shape.empty() ? 0 : shape[0])] = sample(dtype, shape);
    }
  }
  save_tensors(folder.path() / "a.safetensors", tensors, {{"format", "pt"}, {"note", "\"quoted\" \u00e9"}});
  const SafetensorsFile file(folder.path() / "a.safetensors");
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"note", "\"quoted\" \u00e9"}}));
  EXPECT_EQ(file.entries().size(), tensors.size());
  EXPECT_EQ(file.header_bytes().size() % 8, 0u);
  for (const auto& [name, want] : tensors) {
    const at::Tensor got = file.tensor(name);
    EXPECT_EQ(got.scalar_type(), want.scalar_type()) << name;
    EXPECT_EQ(got.sizes(), want.sizes()) << name;
    EXPECT_EQ(bits(got), bits(want)) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got.const_data_ptr()) % got.element_size(), 0u) << name;
  }
}

TEST(Safetensors, TheBytesAreTheFormatsOwn) {
  const TemporaryFolder folder;
  save_tensors(folder.path() / "a", {{"b", at::tensor({1, 2}, at::kByte)}, {"a", at::scalar_tensor(-1, at::kInt)}}, {{"k", "v"}});
  std::string header = R"({"__metadata__":{"k":"v"},"a":{"dtype":"I32","shape":[],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(folder.read("a"), std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header + "\xff\xff\xff\xff\x01\x02");
}

TEST(Safetensors, SameInputGivesSameBytes) {
  const TemporaryFolder folder;
  const std::map<std::string, at::Tensor> tensors = {{"x", sample(at::kFloat, {7, 3})}, {"y", sample(at::kBFloat16, {5})}};
  save_tensors(folder.path() / "a", tensors);
  save_tensors(folder.path() / "b", tensors);
  EXPECT_EQ(folder.read("a"), folder.read("b"));
}

TEST(Safetensors, WritesWholeValuesOfStridedTensors) {
  const TemporaryFolder folder;
  const at::Tensor x = sample(at::kFloat, {6, 4});
  save_tensors(folder.path() / "a", {{"t", x.t()}, {"s", x.slice(0, 1, 6, 2)}, {"e", x.select(0, 0).unsqueeze(0).expand({3, 4})}});
  auto back = load_tensors(folder.path() / "a");
  EXPECT_TRUE(at::equal(back["t"], x.t()));
  EXPECT_TRUE(at::equal(back["s"], x.slice(0, 1, 6, 2)));
  EXPECT_TRUE(at::equal(back["e"], x.select(0, 0).expand({3, 4})));
}

TEST(Safetensors, ViewsOutliveTheFileObjectAndAnOverwrittenFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.safetensors";
  const at::Tensor old_value = sample(at::kFloat, {50000});
  save_tensors(path, {{"x", old_value}});
  const at::Tensor view = SafetensorsFile(path).tensor("x");
  save_tensors(path, {{"x", at::zeros({50000})}});
  EXPECT_TRUE(at::equal(view, old_value));
  EXPECT_TRUE(at::equal(SafetensorsFile(path).tensor("x"), at::zeros({50000})));
  std::filesystem::remove(path);
  EXPECT_TRUE(at::equal(view, old_value));
}

TEST(Safetensors, AnUnfinishedWriterLeavesNothing) {
  const TemporaryFolder folder;
  folder.write("a", "the old file");
  {
    SafetensorsWriter writer(folder.path() / "a", {{"x", at::kFloat, {2}}, {"y", at::kFloat, {2}}});
    writer.write("x", at::zeros({2}));
    EXPECT_THROW(writer.finish(), BugError);   // y is missing
  }
  EXPECT_EQ(folder.read("a"), "the old file");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(Safetensors, TheWriterRefusesWhatWasNotDeclared) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.path() / "a", {{"x", at::kFloat, {2, 3}}, {"y", at::kInt, {1}}});
  EXPECT_THROW(writer.write("y", at::zeros({1}, at::kInt)), BugError);       // order
  EXPECT_THROW(writer.write("x", at::zeros({3, 2})), BugError);              // shape
  EXPECT_THROW(writer.write("x", at::zeros({2, 3}, at::kHalf)), BugError);   // dtype
  writer.write("x", at::zeros({2, 3}));
  writer.write("y", at::zeros({1}, at::kInt));
  EXPECT_THROW(writer.write("z", at::zeros({1})), BugError);                 // one too many
  EXPECT_THROW(SafetensorsWriter(folder.path() / "b", {{"x", at::kFloat, {1}}, {"x", at::kFloat, {1}}}), BugError);
  EXPECT_THROW(SafetensorsWriter(folder.path() / "b", {{"x", at::kComplexFloat, {1}}}), DataError);
}

TEST(Safetensors, AMissingTensorIsNamed) {
  const TemporaryFolder folder;
  save_tensors(folder.path() / "a", {{"x", at::zeros({1})}});
  const SafetensorsFile file(folder.path() / "a");
  EXPECT_EQ(file.find("y"), nullptr);
  try {
    file.tensor("y");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("no tensor y"), std::string::npos);
  }
}

TEST(Safetensors, EntriesComeInFileOrder) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.path() / "a", {{"z", at::kByte, {1}}, {"m", at::kByte, {0}}, {"a", at::kByte, {2}}});
  writer.write("z", at::zeros({1}, at::kByte));
  writer.write("m", at::zeros({0}, at::kByte));
  writer.write("a", at::zeros({2}, at::kByte));
  writer.finish();
  const SafetensorsFile file(folder.path() / "a");
  std::string order;
  for (const auto& entry : file.entries()) order += entry.name;
  EXPECT_EQ(order, "zma");
}

TEST(Safetensors, ReadsTheReferenceFilesOfThePythonPackage) {
  const SafetensorsFile file(SCALEWRIGHT_TEST_DATA "/golden/quant_vectors.safetensors");
  EXPECT_GT(file.entries().size(), 100u);
  for (const auto& entry : file.entries()) EXPECT_EQ(file.tensor(entry.name).nbytes(), entry.end - entry.begin) << entry.name;
}

}  // namespace
}  // namespace scalewright
