#include "train/loss.h"
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "base/error.h"
#include "base/near.h"
#include "comm/exact_sums.h"
#include "ops/cuda_build.h"
#include "ops/gemm.h"
#include "train/loss_cuda.h"
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
  LossSplit split;
  std::vector<int64_t> vocabulary_rows;   // of each tp rank's head

  bool split_vocabulary() const { return split.tp != nullptr; }
  /// Whether the token kernel runs on a GPU. If not, another device's logits travel to the CPU, chunk by chunk.
  bool on_gpu() const {
    if constexpr (kCudaBuild) return compute.device.is_cuda() && !split_vocabulary() && cuda::has_token_losses(token, vocabulary());
    return false;
  }
  int64_t vocabulary() const { return std::accumulate(vocabulary_rows.begin(), vocabulary_rows.end(), int64_t{0}); }
};

/// The loss with gradients made during the forward pass.
struct Result {
  ExactLossSums sums;
  at::Tensor d_student_TH, d_head_VH;   // undefined where not wanted
};

void add_token(ExactLossSums& sums, const TokenLoss& token) {
  sums.loss += token.loss;
  sums.lm += token.lm;
  sums.fkl += token.fkl;
  sums.rkl += token.rkl;
  sums.cakld += token.cakld;
  sums.fkl_squared += token.fkl * token.fkl;
  sums.top1_agree += token.top1_agree;
  ++sums.tokens;
}

/// Tokens of a chunk that each tp rank takes.
std::vector<int64_t> token_shares(const Problem& problem, int64_t count) {
  std::vector<int64_t> shares;
  const int64_t ranks = problem.split_vocabulary() ? problem.split.tp->size() : 1;
  for (int64_t r = 0; r < ranks; ++r) shares.push_back((r + 1) * count / ranks - r * count / ranks);
  return shares;
}

/// [n, v] of this rank's part v of the vocabulary for all tokens of a chunk -> whole rows [n_r, V] of this rank's share of the tokens.
at::Tensor whole_rows(const Problem& problem, const at::Tensor& part, const std::vector<int64_t>& shares) {
  const Group& tp = *problem.split.tp;
  const int64_t own = shares[tp.rank()], width = part.size(1);
  std::vector<int64_t> send, receive;
  for (int r = 0; r < tp.size(); ++r) {
    send.push_back(shares[r] * width);
    receive.push_back(own * problem.vocabulary_rows[r]);
  }
  const at::Tensor flat = tp.all_to_all(part.contiguous().flatten(), send, receive);
  std::vector<at::Tensor> columns;
  int64_t at = 0;
  for (int r = 0; r < tp.size(); ++r) {
    columns.push_back(flat.narrow(0, at, receive[r]).view({own, problem.vocabulary_rows[r]}));
    at += receive[r];
  }
  return at::cat(columns, 1);
}

/// The way back: whole rows [n_r, V] -> this rank's part of the vocabulary for all tokens of the chunk [n, v].
at::Tensor own_columns(const Problem& problem, const at::Tensor& whole, const std::vector<int64_t>& shares) {
  const Group& tp = *problem.split.tp;
  const int64_t width = problem.vocabulary_rows[tp.rank()];
  std::vector<at::Tensor> parts;
  std::vector<int64_t> send, receive;
  int64_t column = 0, count = 0;
  for (int r = 0; r < tp.size(); ++r) {
    parts.push_back(whole.narrow(1, column, problem.vocabulary_rows[r]).flatten());
    send.push_back(parts.back().numel());
    receive.push_back(shares[r] * width);
    column += problem.vocabulary_rows[r];
    count += shares[r];
  }
  return tp.all_to_all(at::cat(parts), send, receive).view({count, width});
}

at::Tensor logits_of(const Problem& problem, const at::Tensor& hidden_TH, const at::Tensor& rows, const at::Tensor& head_VH,
                     const std::vector<int64_t>& shares) {
  const at::Device device = problem.on_gpu() ? problem.compute.device : at::Device(at::kCPU);
  const at::Tensor part = matmul_nt(problem.compute, hidden_TH.index_select(0, rows), head_VH).to(device, problem.compute.accurate()).contiguous();
  return problem.split_vocabulary() ? whole_rows(problem, part, shares) : part;
}

/// Three products over the head a chunk (four when the head itself is trained); nothing of [T,V] outlives its chunk.
/// Under tensor parallelism each rank multiplies all tokens by its rows of the head, and computes the losses of its share of the tokens.
Result run(const Problem& problem, const at::Tensor& student, const at::Tensor& head_student_VH) {
  at::NoGradGuard no_grad;
  Result result;
  const auto all_tokens = [&](const at::Tensor& x) {
    return x.defined() && problem.split_vocabulary() ? problem.split.tp->all_gather(x.detach().contiguous(), problem.split.tp_rows) : x;
  };
  const at::Tensor student_TH = all_tokens(student), teacher_TH = all_tokens(problem.teacher_TH);
  if (problem.want_student) result.d_student_TH = at::zeros_like(student_TH, at::MemoryFormat::Contiguous);
  if (problem.want_head) result.d_head_VH = at::zeros_like(head_student_VH, problem.compute.accurate_options());

  const at::Tensor all_labels_T = problem.labels_T.cpu(), valid = all_labels_T.ne(kIgnored).nonzero().flatten();
  const at::Tensor labels = all_labels_T.index_select(0, valid).contiguous();
  const at::Tensor rows = valid.to(problem.compute.device), labels_there = problem.on_gpu() ? labels.to(problem.compute.device) : at::Tensor();
  const std::span<const int64_t> all_labels(labels.const_data_ptr<int64_t>(), labels.numel());
  const int64_t vocabulary = problem.vocabulary();
  for (const int64_t label : all_labels) SW_CHECK(label >= 0 && label < vocabulary, "label {} of a vocabulary of {}", label, vocabulary);

  std::vector<TokenLoss> tokens;
  std::vector<at::Tensor> losses_there;
  for (int64_t begin = 0; begin < rows.numel(); begin += problem.chunk) {
    const int64_t count = std::min(problem.chunk, rows.numel() - begin);
    const at::Tensor chunk_rows = rows.narrow(0, begin, count);
    const std::vector<int64_t> shares = token_shares(problem, count);
    const int64_t rank = problem.split_vocabulary() ? problem.split.tp->rank() : 0;
    const int64_t first = std::accumulate(shares.begin(), shares.begin() + rank, begin), own = shares[rank];
    at::Tensor teacher;
    if (teacher_TH.defined()) teacher = logits_of(problem, teacher_TH, chunk_rows, problem.head_teacher_VH, shares);
    at::Tensor logits = logits_of(problem, student_TH, chunk_rows, head_student_VH, shares);
    if (problem.on_gpu()) {
      if constexpr (kCudaBuild) losses_there.push_back(cuda::token_losses(problem.token, logits, teacher, labels_there.narrow(0, begin, count)));
    } else {
      tokens.resize(own);
      token_losses_cpu(problem.token, logits, teacher, all_labels.subspan(first, own), tokens);
      for (const TokenLoss& token : tokens) add_token(result.sums, token);
    }
    if (!problem.token.gradient) continue;
    const at::Tensor d_part = problem.split_vocabulary() ? own_columns(problem, logits, shares) : logits;
    const at::Tensor d_logits = d_part.to(problem.compute.device, problem.compute.dtype);
    if (problem.want_student) result.d_student_TH.index_copy_(0, chunk_rows, matmul_nn(problem.compute, d_logits, head_student_VH));
    if (problem.want_head) result.d_head_VH.add_(matmul_tn(problem.compute, d_logits, student_TH.index_select(0, chunk_rows)));
  }
  if constexpr (kCudaBuild)
    for (const TokenLoss& token : cuda::read_token_losses(losses_there)) add_token(result.sums, token);
  if (problem.want_student && problem.split_vocabulary()) result.d_student_TH = problem.split.tp->reduce_scatter(result.d_student_TH, problem.split.tp_rows);
  return result;
}

/// Forward computes loss and gradients; backward only multiplies them by the incoming scalar.
struct DistillationLoss : torch::autograd::Function<DistillationLoss> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& student_TH, const at::Tensor& head_student_VH,
                            const Problem* problem, ExactLossSums* sums) {
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

/// Rows of the head on each tp rank.
std::vector<int64_t> vocabulary_rows(const LossSplit& split, int64_t own) {
  if (!split.tp || split.tp->alone()) return {own};
  const at::Tensor all = split.tp->all_gather(at::full({1}, own, at::kLong), std::vector<int64_t>(static_cast<std::size_t>(split.tp->size()), 1));
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

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

ExactLossSums& ExactLossSums::operator+=(const ExactLossSums& other) {
  loss += other.loss;
  lm += other.lm;
  fkl += other.fkl;
  rkl += other.rkl;
  cakld += other.cakld;
  fkl_squared += other.fkl_squared;
  tokens += other.tokens;
  top1_agree += other.top1_agree;
  return *this;
}

LossSums ExactLossSums::total(const Group& group) const {
  // Counts below 2^53 are exact in float64.
  const std::vector<ExactSum> all = add_up(group, {loss, lm, fkl, rkl, cakld, fkl_squared, static_cast<double>(tokens), static_cast<double>(top1_agree)});
  return {all[0], all[1], all[2], all[3], all[4], static_cast<int64_t>(double{all[6]}), all[5], static_cast<int64_t>(double{all[7]})};
}

LossResult distillation_loss(const Compute& compute, const LossSection& options, const at::Tensor& student_TH, const at::Tensor& teacher_TH,
                             const at::Tensor& head_student_VH, const at::Tensor& head_teacher_VH, const at::Tensor& labels_T, double scale, const LossSplit& split) {
  const bool alone = !split.tp || split.tp->alone();
  const int64_t hidden_of_all = alone ? student_TH.size(0) : std::accumulate(split.tp_rows.begin(), split.tp_rows.end(), int64_t{0});
  SW_CHECK(student_TH.dim() == 2 && labels_T.dim() == 1 && labels_T.size(0) == hidden_of_all, "{} labels for {} hidden states", labels_T.numel(),
           hidden_of_all);
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
  if (!alone) problem.split = split;
  problem.vocabulary_rows = vocabulary_rows(split, head_student_VH.size(0));
  problem.token = {find_distill_type(options.type), options.lm_weight, options.distill_weight, options.temperature, options.top_k,
                   options.tail, options.jsd_beta, scale, problem.want_student || problem.want_head};
  LossResult result;
  result.loss = DistillationLoss::apply(student_TH, head_student_VH, &problem, &result.sums);
  return result;
}

}  // namespace scalewright
