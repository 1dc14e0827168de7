#include "train/loss_cuda.h"

#include "base/error.h"
#include "ops/element.h"
#include "ops/tensors_cuda.h"
#include "train/adamw_cuda.h"
#include "train/adamw_kernel.h"
#include "train/loss_kernel_cuda.h"

namespace scalewright::cuda {

bool has_token_losses(const TokenLossOptions& options, int64_t vocabulary) { return options.top_k == 0 || options.top_k >= vocabulary; }

at::Tensor token_losses(const TokenLossOptions& options, at::Tensor& student_TV, const at::Tensor& teacher_TV, const at::Tensor& labels) {
  const int64_t tokens = student_TV.size(0), vocabulary = student_TV.size(1);
  SW_CHECK(student_TV.is_contiguous() && (!teacher_TV.defined() || teacher_TV.is_contiguous()), "logits must be contiguous");
  SW_CHECK(labels.numel() == tokens && labels.scalar_type() == at::kLong && labels.is_contiguous() && labels.device() == student_TV.device(), "{} labels of {} tokens",
           labels.numel(), tokens);
  SW_CHECK(!teacher_TV.defined() || (teacher_TV.scalar_type() == student_TV.scalar_type() && teacher_TV.sizes() == student_TV.sizes()),
           "teacher and student logits differ in shape or type");
  SW_CHECK(student_TV.scalar_type() == at::kDouble || student_TV.scalar_type() == at::kFloat, "logits in {}", c10::toString(student_TV.scalar_type()));
  at::Tensor losses = at::empty({tokens, static_cast<int64_t>(sizeof(TokenLoss))}, student_TV.options().dtype(at::kByte));
  launch_token_losses(options, element_of(student_TV, "logits"), student_TV.mutable_data_ptr(), data_of(teacher_TV), labels.const_data_ptr<int64_t>(), tokens,
                      vocabulary, reinterpret_cast<TokenLoss*>(losses.mutable_data_ptr<std::uint8_t>()), stream_of(student_TV));
  return losses;
}

std::vector<TokenLoss> read_token_losses(std::span<const at::Tensor> losses) {
  if (losses.empty()) return {};
  const at::Tensor bytes = at::cat(std::vector<at::Tensor>(losses.begin(), losses.end())).to(at::kCPU);
  std::vector<TokenLoss> result(static_cast<std::size_t>(bytes.size(0)));
  static_assert(std::is_trivially_copyable_v<TokenLoss>);
  if (!result.empty()) std::memcpy(static_cast<void*>(result.data()), bytes.const_data_ptr(), result.size() * sizeof(TokenLoss));
  return result;
}

void adamw_update(const AdamWUpdate& update, at::Tensor& p, const at::Tensor& g, at::Tensor& m, at::Tensor& v) {
  SW_CHECK(p.is_contiguous() && g.is_contiguous() && m.is_contiguous() && v.is_contiguous() && g.scalar_type() == p.scalar_type() &&
               m.scalar_type() == p.scalar_type() && v.scalar_type() == p.scalar_type() && g.numel() == p.numel(),
           "an update of {} values", p.numel());
  launch_adamw(update, element_of(p, "a trainable"), p.mutable_data_ptr(), data_of(g), m.mutable_data_ptr(), v.mutable_data_ptr(), p.numel(), stream_of(p));
}

}  // namespace scalewright::cuda
