#include "base/json.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"

namespace scalewright {
namespace {

std::string refusal(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "some.json", limits);
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Json, BuildsTheSameValuesAsNlohmann) {
  for (const char* text : {"null", "true", "0", "-7", "18446744073709551615", "1.5e-3", "\"\\u00e9\\n\"", "[]", "{}", "[[],{}, [1, [2]]]",
                           R"({"a": {"b": [1, {"c": null}], "d": "x"}, "e": [{"a": 1}, {"a": 2}]})", " [1 , 2 ] \n"}) {
    EXPECT_EQ(parse_json(text, "t"), Json::parse(text)) << text;
  }
}

TEST(Json, RefusesMalformedTextNamingThePlace) {
  EXPECT_NE(refusal("{\"a\": 1,\n \"b\" 2}").find("some.json: not valid JSON: parse error at line 2"), std::string::npos);
  for (const char* text : {"", "  ", "{", "[1,]", "{\"a\":1,}", "01", "+1", "NaN", "Infinity", "1e999", "'a'", "[1] [2]", "{1: 2}", "\"a\nb\"",
                           "\"\\ud800\"", "\"\\ud800\\u0041\"", "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "// c\n1", "nul", "\xff\xfe[]"}) {
    EXPECT_NE(refusal(text).find("not valid JSON"), std::string::npos) << text;
  }
}

TEST(Json, RefusesNulBytes) {
  EXPECT_NE(refusal(std::string_view("{}\0garbage", 10)).find("a NUL byte at offset 2"), std::string::npos);
  EXPECT_NE(refusal(std::string_view("\"a\0b\"", 5)).find("a NUL byte"), std::string::npos);
  EXPECT_EQ(parse_json("\"a\\u0000b\"", "t").get<std::string>(), std::string("a\0b", 3));   // escaped, it is a character
}

TEST(Json, RefusesDuplicateKeys) {
  EXPECT_NE(refusal(R"({"a": 1, "b": 2, "a": 1})").find("\"a\" appears twice in the top-level object"), std::string::npos);
  EXPECT_NE(refusal(R"({"x": {"y": [{"a": 1, "\u0061": 1}]}})").find("\"a\" appears twice"), std::string::npos);
  EXPECT_NE(refusal(R"({"x": {"a": 1, "b": {"a": 2}, "b": 3}})").find("\"b\" appears twice in the object under \"x\""), std::string::npos);
  EXPECT_EQ(refusal(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})"), "accepted");
}

TEST(Json, LimitsDepthAndSize) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(refusal(nested(64)), "accepted");
  EXPECT_NE(refusal(nested(65)).find("nested more than 64 deep"), std::string::npos);
  EXPECT_NE(refusal(std::string(100000, '[')).find("nested more than"), std::string::npos);
  EXPECT_NE(refusal("[1, 2, 3]", {.max_bytes = 8}).find("more than the limit of 8"), std::string::npos);
}

TEST(Json, KeepsHugeIntegersAsDoublesAndToleratesAByteOrderMark) {
  // tokenizer_config.json files of the hub hold this number.
  EXPECT_EQ(parse_json("1000000000000000019884624838656", "t").get<double>(), 1e30);
  EXPECT_EQ(parse_json("\xef\xbb\xbf[1]", "t"), Json::parse("[1]"));
}

TEST(Json, ReadsFilesAndNamesThem) {
  const auto path = std::filesystem::path(testing::TempDir()) / "json_test.json";
  std::ofstream(path) << R"({"key": [1, 2]})";
  EXPECT_EQ(read_json(path), Json::parse(R"({"key": [1, 2]})"));
  EXPECT_THROW(read_json(path, {.max_bytes = 10}), DataError);
  std::ofstream(path) << "{";
  try {
    read_json(path);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with(path.string()));
  }
  std::filesystem::remove(path);
  EXPECT_THROW(read_json(path), DataError);
  EXPECT_THROW(read_json(testing::TempDir()), DataError);
}

}  // namespace
}  // namespace scalewright
