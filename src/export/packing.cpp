#include "export/packing.h"

#include "base/error.h"

namespace scalewright {

at::Tensor pack_nibbles(const at::Tensor& codes_RK) {
  SW_CHECK(codes_RK.dim() == 2 && codes_RK.size(1) % 2 == 0 && codes_RK.scalar_type() == at::kByte, "nibbles come in pairs of bytes");
  const at::Tensor codes = codes_RK.contiguous();
  at::Tensor packed = at::empty({codes.size(0), codes.size(1) / 2}, codes.options());
  const std::uint8_t* in = codes.const_data_ptr<std::uint8_t>();
  std::uint8_t* out = packed.mutable_data_ptr<std::uint8_t>();
  at::parallel_for(0, packed.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = static_cast<std::uint8_t>((in[2 * i] & 15) | (in[2 * i + 1] << 4));
  });
  return packed;
}

at::Tensor unpack_nibbles(const at::Tensor& packed) {
  const at::Tensor words = packed.contiguous();
  at::Tensor codes = at::empty({words.size(0), words.size(1) * 2}, words.options());
  const std::uint8_t* in = words.const_data_ptr<std::uint8_t>();
  std::uint8_t* out = codes.mutable_data_ptr<std::uint8_t>();
  at::parallel_for(0, words.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[2 * i] = in[i] & 15;
      out[2 * i + 1] = in[i] >> 4;
    }
  });
  return codes;
}

at::Tensor pack_int32(const at::Tensor& codes_RK) {
  SW_CHECK(codes_RK.dim() == 2 && codes_RK.scalar_type() == at::kChar, "int4 codes come as int8");
  const at::Tensor codes = codes_RK.contiguous();
  const int64_t rows = codes.size(0), columns = codes.size(1), words = (columns + 7) / 8;
  at::Tensor packed = at::empty({rows, words}, codes.options().dtype(at::kInt));
  const std::int8_t* in = codes.const_data_ptr<std::int8_t>();
  std::int32_t* out = packed.mutable_data_ptr<std::int32_t>();
  at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t w = 0; w < words; ++w) {
        std::uint32_t word = 0;
        for (int64_t k = 8 * w; k < std::min(columns, 8 * w + 8); ++k)
          word |= static_cast<std::uint32_t>((in[r * columns + k] + 8) & 15) << (4 * (k % 8));
        out[r * words + w] = static_cast<std::int32_t>(word);
      }
  });
  return packed;
}

at::Tensor unpack_int32(const at::Tensor& packed, int64_t columns) {
  SW_CHECK(packed.size(1) == (columns + 7) / 8, "{} words cannot hold {} columns", packed.size(1), columns);
  const at::Tensor words = packed.contiguous();
  at::Tensor codes = at::empty({words.size(0), columns}, words.options().dtype(at::kChar));
  const std::int32_t* in = words.const_data_ptr<std::int32_t>();
  std::int8_t* out = codes.mutable_data_ptr<std::int8_t>();
  at::parallel_for(0, words.size(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t k = 0; k < columns; ++k) {
        const auto word = static_cast<std::uint32_t>(in[r * words.size(1) + k / 8]);
        out[r * columns + k] = static_cast<std::int8_t>(static_cast<int>((word >> (4 * (k % 8))) & 15) - 8);
      }
  });
  return codes;
}

}  // namespace scalewright
