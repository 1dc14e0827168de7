// Codes to the words that files hold, and back.
#pragma once
#include <ATen/core/Tensor.h>

namespace scalewright {

/// Four-bit codes [R,K] uint8 -> [R,K/2] uint8: element 2k in the low nibble, 2k+1 in the high one. K is even.
at::Tensor pack_nibbles(const at::Tensor& codes_RK);
/// The inverse: [R,K/2] -> [R,K] uint8.
at::Tensor unpack_nibbles(const at::Tensor& packed);

/// Signed four-bit integers [R,K] int8 -> [R,ceil(K/8)] int32: q+8 of element k at bits 4*(k%8) of word k/8, zero-padded.
at::Tensor pack_int32(const at::Tensor& codes_RK);
/// The inverse, for K columns: [R,K] int8.
at::Tensor unpack_int32(const at::Tensor& packed, int64_t columns);

}  // namespace scalewright
