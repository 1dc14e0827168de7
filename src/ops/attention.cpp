#include "ops/attention.h"
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "ops/attention_kernels.h"

namespace scalewright {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor contiguous_width(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionRows& rows, double scale) {
    auto [out, lse] = attention_forward(q, k, v, rows, scale);
    ctx->save_for_backward({q, k, v, out, lse});
    ctx->saved_data["offsets"] = rows.offsets;
    ctx->saved_data["segments"] = flatten(rows.segments);
    ctx->saved_data["scale"] = scale;
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    AttentionGradients g =
        attention_backward(contiguous_width(grads[0]), saved[0], saved[1], saved[2], saved[3], saved[4],
                           {ctx->saved_data["offsets"].toIntVector(), unflatten(ctx->saved_data["segments"].toIntVector())},
                           ctx->saved_data["scale"].toDouble());
    return {g.dq, g.dk, g.dv, {}, {}};
  }

 private:
  static std::vector<int64_t> flatten(const std::vector<QuerySegment>& segments) {
    std::vector<int64_t> flat;
    for (const QuerySegment& s : segments) flat.insert(flat.end(), {s.document, s.first_row, s.first_position, s.length});
    return flat;
  }
  static std::vector<QuerySegment> unflatten(const std::vector<int64_t>& flat) {
    std::vector<QuerySegment> segments;
    for (std::size_t i = 0; i < flat.size(); i += 4) segments.push_back({flat[i], flat[i + 1], flat[i + 2], flat[i + 3]});
    return segments;
  }
};

/// Document by document in ATen's own functions, for devices without a kernel of ours.
at::Tensor composed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionRows& rows,
                    double scale) {
  const std::vector<int64_t>& offsets = rows.offsets;
  std::vector<at::Tensor> parts;
  const auto document = [](const at::Tensor& x, int64_t begin, int64_t length) {
    return x.narrow(0, begin, length).transpose(0, 1).unsqueeze(0);
  };
  for (const QuerySegment& segment : rows.segments) {
    if (segment.length == 0) continue;
    const int64_t begin = offsets[segment.document], keys = segment.first_position + segment.length;
    const at::Tensor visible = at::arange(keys, q.options().dtype(at::kLong)) <=
                               at::arange(segment.first_position, keys, q.options().dtype(at::kLong)).unsqueeze(1);
    parts.push_back(at::scaled_dot_product_attention(document(q, segment.first_row, segment.length), document(k, begin, keys),
                                                     document(v, begin, keys), visible, 0.0,
                                                     /*is_causal=*/false, scale, /*enable_gqa=*/q.size(1) != k.size(1))
                        .squeeze(0)
                        .transpose(0, 1));
  }
  return parts.empty() ? at::empty_like(q) : at::cat(parts, 0);
}

void check_heads(const at::Tensor& q, int64_t kv_heads, int64_t k_width, int64_t v_width) {
  SW_CHECK(kv_heads > 0 && q.size(1) % kv_heads == 0, "{} query heads on {} key and value heads", q.size(1), kv_heads);
  SW_CHECK(q.size(2) == k_width && q.size(2) == v_width, "head widths {}, {} and {}", q.size(2), k_width, v_width);
}

void check_rows(const AttentionRows& rows, int64_t keys) {
  const std::vector<int64_t>& offsets = rows.offsets;
  SW_CHECK(!offsets.empty() && offsets.front() == 0 && offsets.back() == keys && std::is_sorted(offsets.begin(), offsets.end()),
           "document offsets do not run from 0 to {} tokens", keys);
  int64_t row = 0, document = 0;
  for (const QuerySegment& s : rows.segments) {
    SW_CHECK(s.document >= document && s.document + 1 < static_cast<int64_t>(offsets.size()) && s.first_row == row && s.length >= 0 &&
                 s.first_position >= 0 && s.first_position + s.length <= offsets[s.document + 1] - offsets[s.document],
             "queries {}.. of document {} do not fit", s.first_position, s.document);
    row += s.length;
    document = s.document;
  }
}

}  // namespace

at::Tensor attention(const Compute&, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionRows& rows, double scale) {
  SW_CHECK(q.dim() == 3 && k.dim() == 3 && v.dim() == 3 && rows.queries() == q.size(0) && k.size(0) == v.size(0),
           "attention of {}, {} and {} tokens", q.size(0), k.size(0), v.size(0));
  check_heads(q, k.size(1), k.size(2), v.size(2));
  check_rows(rows, k.size(0));
  if (!q.is_cpu()) return composed(q, k, v, rows, scale);
  return Attention::apply(contiguous_width(q), contiguous_width(k), contiguous_width(v), rows, scale);
}

at::Tensor attention_step(const Compute&, const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                          const std::vector<int64_t>& lengths, double scale) {
  SW_CHECK(q.dim() == 3 && k_cache.dim() == 4 && v_cache.sizes() == k_cache.sizes() && q.size(0) == k_cache.size(0) &&
               static_cast<int64_t>(lengths.size()) == q.size(0),
           "a step of {} sequences against a cache of {} with {} lengths", q.size(0), k_cache.size(0), lengths.size());
  check_heads(q, k_cache.size(2), k_cache.size(3), v_cache.size(3));
  for (int64_t length : lengths)
    SW_CHECK(length >= 1 && length <= k_cache.size(1), "{} of {} positions are valid", length, k_cache.size(1));
  if (!q.is_cpu())
    throw UserError("generation is not built for " + q.device().str() + " yet\n  hint: generate on the CPU");
  return attention_step_kernel(contiguous_width(q), contiguous_width(k_cache), contiguous_width(v_cache), lengths,
                               scale);
}

}  // namespace scalewright
