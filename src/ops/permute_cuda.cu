#include "ops/rows_cuda_device.h"

namespace scalewright::cuda {
namespace {

__global__ void inverse_kernel(const int64_t* slot, int64_t count, int64_t* inverse) {
  const int64_t row = thread_number();
  if (row < count) inverse[slot[row]] = row;
}

/// Sixteen bytes, moved by one instruction.
struct alignas(16) Bytes16 {
  std::uint64_t low, high;
};

/// `width` and the strides of `x` count units.
template <class Unit>
__global__ void copy_rows_kernel(RowsView x, const int64_t* token, int64_t width, Unit* out) {
  const Place at = place_in(width);
  if (at.column < width) out[at.row * width + at.column] = row_of<Unit>(x, token[at.row])[at.column];
}

template <class T>
__global__ void sum_choices_kernel(RowsView y, const Accurate<T>* weight, const int64_t* inverse, int64_t choices, int64_t width, T* out) {
  const Place at = place_in(width);
  if (at.column >= width) return;
  Accurate<T> sum = 0;
  for (int64_t s = at.row * choices; s < (at.row + 1) * choices; ++s) {
    const Accurate<T> value = load(row_of<T>(y, inverse[s])[at.column]);
    sum += weight ? weight[s] * value : value;
  }
  out[at.row * width + at.column] = store<T>(sum);
}

template <class T>
__global__ void scale_rows_kernel(RowsView dout, const Accurate<T>* weight, const int64_t* token, const int64_t* slot, int64_t width, T* dy) {
  const Place at = place_in(width);
  if (at.column < width) dy[at.row * width + at.column] = store<T>(weight[slot[at.row]] * load(row_of<T>(dout, token[at.row])[at.column]));
}

/// Sixteen lanes a dot product.
template <class T>
__global__ void choice_dots_kernel(RowsView dout, RowsView y, const int64_t* inverse, int64_t slots, int64_t choices, int64_t width, Accurate<T>* out) {
  const int64_t slot = thread_number() / kLanes;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  Accurate<T> sum = 0;
  if (slot < slots) {
    const T *a = row_of<T>(dout, slot / choices), *b = row_of<T>(y, inverse[slot]);
    for (int64_t i = lane; i < width; i += kLanes) sum += load(a[i]) * load(b[i]);
  }
  sum = add_row_lanes(sum);
  if (slot < slots && lane == 0) out[slot] = sum;
}

template <class Unit>
void copy_units(const RowsView& x, const int64_t* token, int64_t count, int64_t width, void* out, cudaStream_t stream) {
  SW_LAUNCH((copy_rows_kernel<Unit>), blocks_for_rows(count, width), kThreads, stream, x, token, width, static_cast<Unit*>(out));
}

}  // namespace

void launch_inverse(const int64_t* slot, int64_t count, int64_t* inverse, cudaStream_t stream) {
  SW_LAUNCH(inverse_kernel, blocks_for(count), kThreads, stream, slot, count, inverse);
}

void launch_copy_rows(Element element, const RowsView& x, const int64_t* token, int64_t count, int64_t width, void* out, cudaStream_t stream) {
  const int64_t size = element == Element::kFloat64 ? 8 : element == Element::kFloat32 ? 4 : 2, per_unit = 16 / size;
  const auto whole = [&](int64_t n) { return n % per_unit == 0; };
  if (whole(width) && whole(x.outer_stride) && (x.inner == 1 || whole(x.inner_stride)) && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 &&
      reinterpret_cast<std::uintptr_t>(out) % 16 == 0)
    return copy_units<Bytes16>({x.data, x.inner, x.outer_stride / per_unit, x.inner_stride / per_unit}, token, count, width / per_unit, out, stream);
  if (size == 8) return copy_units<std::uint64_t>(x, token, count, width, out, stream);
  if (size == 4) return copy_units<std::uint32_t>(x, token, count, width, out, stream);
  copy_units<std::uint16_t>(x, token, count, width, out, stream);
}

void launch_sum_choices(Element element, const RowsView& y, const void* weight, const int64_t* inverse, int64_t tokens, int64_t choices, int64_t width,
                        void* out, cudaStream_t stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    SW_LAUNCH((sum_choices_kernel<T>), blocks_for_rows(tokens, width), kThreads, stream, y, static_cast<const Accurate<T>*>(weight), inverse, choices, width,
              static_cast<T*>(out));
  });
}

void launch_scale_rows(Element element, const RowsView& dout, const void* weight, const int64_t* token, const int64_t* slot, int64_t count, int64_t width,
                       void* dy, cudaStream_t stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    SW_LAUNCH((scale_rows_kernel<T>), blocks_for_rows(count, width), kThreads, stream, dout, static_cast<const Accurate<T>*>(weight), token, slot, width,
              static_cast<T*>(dy));
  });
}

void launch_choice_dots(Element element, const RowsView& dout, const RowsView& y, const int64_t* inverse, int64_t slots, int64_t choices, int64_t width,
                        void* out, cudaStream_t stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    SW_LAUNCH((choice_dots_kernel<T>), blocks_for(slots * kLanes), kThreads, stream, dout, y, inverse, slots, choices, width, static_cast<Accurate<T>*>(out));
  });
}

}  // namespace scalewright::cuda
