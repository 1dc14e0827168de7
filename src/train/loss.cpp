#include "train/loss.h"
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "base/near.h"
#include "ops/gemm.h"
#include "train/loss_kernel.h"

namespace scalewright {

namespace {

constexpr int64_t kIgnored = -100;

/// Everything one call needs that autograd does not look at.
struct Problem {
  Compute compute;
  TokenLossOptions token;
  int64_t chunk = 256;
  bool want_student = false, want_head = false;   // gradients
  at::Tensor teacher_TH, head_teacher_VH, labels_T;
};

/// The loss with gradients made during the forward pass.
struct Result {
  LossSums sums;
  at::Tensor d_student_TH, d_head_VH;   // undefined where not wanted
};

void add_token(LossSums& sums, const TokenLoss& token) {
  sums.loss += token.loss;
  sums.lm += token.lm;
  sums.fkl += token.fkl;
  sums.rkl += token.rkl;
  sums.cakld += token.cakld;
  sums.fkl_squared += token.fkl * token.fkl;
  sums.top1_agree += token.top1_agree;
  ++sums.tokens;
}

at::Tensor logits_of(const Problem& problem, const at::Tensor& hidden_TH, const at::Tensor& rows, const at::Tensor& head_VH) {
  // The token kernel runs on the CPU; another device's logits travel there, chunk by chunk.
  return matmul_nt(problem.compute, hidden_TH.index_select(0, rows), head_VH).to(at::kCPU, problem.compute.accurate()).contiguous();
}

/// Three products over the head a chunk (four when the head itself is trained); nothing of [T,V] outlives its chunk.
Result run(const Problem& problem, const at::Tensor& student_TH, const at::Tensor& head_student_VH) {
  at::NoGradGuard no_grad;
  Result result;
  if (problem.want_student) result.d_student_TH = at::zeros_like(student_TH, at::MemoryFormat::Contiguous);
  if (problem.want_head) result.d_head_VH = at::zeros_like(head_student_VH, problem.compute.accurate_options());

  const at::Tensor rows = problem.labels_T.ne(kIgnored).nonzero().flatten();
  const at::Tensor labels = problem.labels_T.index_select(0, rows).cpu().contiguous();
  const std::span<const int64_t> all_labels(labels.const_data_ptr<int64_t>(), labels.numel());
  const int64_t vocabulary = head_student_VH.size(0);
  for (const int64_t label : all_labels) SW_CHECK(label >= 0 && label < vocabulary, "label {} of a vocabulary of {}", label, vocabulary);

  std::vector<TokenLoss> tokens;
  for (int64_t begin = 0; begin < rows.numel(); begin += problem.chunk) {
    const int64_t count = std::min(problem.chunk, rows.numel() - begin);
    const at::Tensor chunk_rows = rows.narrow(0, begin, count);
    at::Tensor teacher;
    if (problem.teacher_TH.defined()) teacher = logits_of(problem, problem.teacher_TH, chunk_rows, problem.head_teacher_VH);
    at::Tensor logits = logits_of(problem, student_TH, chunk_rows, head_student_VH);
    tokens.resize(count);
    token_losses_cpu(problem.token, logits, teacher, all_labels.subspan(begin, count), tokens);
    for (const TokenLoss& token : tokens) add_token(result.sums, token);
    if (!problem.token.gradient) continue;
    const at::Tensor d_logits = logits.to(problem.compute.device, problem.compute.dtype);
    if (problem.want_student) result.d_student_TH.index_copy_(0, chunk_rows, matmul_nn(problem.compute, d_logits, head_student_VH));
    if (problem.want_head) result.d_head_VH.add_(matmul_tn(problem.compute, d_logits, student_TH.index_select(0, chunk_rows)));
  }
  return result;
}

/// Forward computes loss and gradients; backward only multiplies them by the incoming scalar.
struct DistillationLoss : torch::autograd::Function<DistillationLoss> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& student_TH, const at::Tensor& head_student_VH,
                            const Problem* problem, LossSums* sums) {
    const Result result = run(*problem, student_TH, head_student_VH);
    *sums = result.sums;
    ctx->save_for_backward({result.d_student_TH, result.d_head_VH});
    return at::scalar_tensor(result.sums.loss * problem->token.scale, problem->compute.accurate_options());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto scaled = [&](const at::Tensor& g) { return g.defined() ? g * grads[0].to(g.scalar_type()) : at::Tensor(); };
    return {scaled(saved[0]), scaled(saved[1]), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

DistillType find_distill_type(const std::string& name) {
  static const std::vector<std::string> names = {"fkl", "kl", "rkl", "cakld", "jsd"};
  if (name == "fkl" || name == "kl") return DistillType::kForwardKl;
  if (name == "rkl") return DistillType::kReverseKl;
  if (name == "cakld") return DistillType::kCakld;
  if (name == "jsd") return DistillType::kJsd;
  const auto near = nearest(name, names);
  throw UserError(fmt::format("unknown distillation loss '{}': expected fkl (kl), rkl, cakld or jsd{}", name,
                              near ? "\nhint: did you mean '" + *near + "'?" : ""));
}

LossSums& LossSums::operator+=(const LossSums& other) {
  loss += other.loss;
  lm += other.lm;
  fkl += other.fkl;
  rkl += other.rkl;
  cakld += other.cakld;
  tokens += other.tokens;
  fkl_squared += other.fkl_squared;
  top1_agree += other.top1_agree;
  return *this;
}

LossResult distillation_loss(const Compute& compute, const LossSection& options, const at::Tensor& student_TH, const at::Tensor& teacher_TH,
                             const at::Tensor& head_student_VH, const at::Tensor& head_teacher_VH, const at::Tensor& labels_T, double scale) {
  SW_CHECK(student_TH.dim() == 2 && labels_T.dim() == 1 && labels_T.size(0) == student_TH.size(0), "{} labels for {} hidden states",
           labels_T.numel(), student_TH.size(0));
  SW_CHECK(!teacher_TH.defined() || teacher_TH.sizes() == student_TH.sizes(), "teacher and student have different shapes");
  SW_CHECK(options.chunk > 0 && options.temperature > 0, "chunk {} and temperature {} must be positive", options.chunk, options.temperature);
  const bool gradients = at::GradMode::is_enabled();
  Problem problem;
  problem.compute = compute;
  problem.chunk = options.chunk;
  problem.want_student = gradients && student_TH.requires_grad();
  problem.want_head = gradients && head_student_VH.requires_grad();
  problem.teacher_TH = teacher_TH.defined() ? teacher_TH.detach() : at::Tensor();
  problem.head_teacher_VH = head_teacher_VH;
  problem.labels_T = labels_T;
  problem.token = {find_distill_type(options.type), options.lm_weight, options.distill_weight, options.temperature, options.top_k,
                   options.tail, options.jsd_beta, scale, problem.want_student || problem.want_head};
  LossResult result;
  result.loss = DistillationLoss::apply(student_TH, head_student_VH, &problem, &result.sums);
  return result;
}

}  // namespace scalewright
