// The stages of `recover`: each leaves a file in the run directory, and a stage whose file is there is not done again.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/session.h"
#include "eval/evaluate.h"
#include "export/export.h"
#include "train/trainer.h"

namespace scalewright {

/// A checkpoint that has been scored.
struct Candidate {
  int64_t step = 0;
  Scores scores;
};

/// One recovery in its run directory:
///   config.yaml, journal.jsonl, log.txt, data/, ptq/quantizer.safetensors, checkpoints/step_N, scores/{bf16,ptq,step_N}.json,
///   export/, verify.json, summary.json
class Recovery {
 public:
  /// Opens model, tasks and data. Throws UserError when the folder holds a run with another configuration, naming what differs.
  Recovery(const Config& config, Context& context);

  Scores score_bf16();
  Scores score_ptq();
  /// Trains to the end, scoring checkpoints on the way.
  std::vector<Candidate> train_and_score();
  /// The best average; between equal ones the smaller divergence, then the earlier step.
  /// What needs no model: throws UserError for a configuration that cannot be recovered from, or without readable tasks.
  static void check(const Config& config);
  static const Candidate& best(const std::vector<Candidate>& candidates);
  void export_best(const Candidate& candidate);
  /// Whether the export re-reads as what was trained; the findings go to verify.json.
  bool verify_best(const Candidate& candidate);
  /// Writes summary.json and returns it.
  OrderedJson summarize(const Scores& bf16, const Scores& ptq, const Candidate& best, bool verified);

  const std::filesystem::path& folder() const { return session_.run; }

 private:
  void claim_folder();
  Decoder& decoder();
  std::filesystem::path scores_path(const std::string& name) const { return session_.run / "scores" / (name + ".json"); }
  std::filesystem::path ptq_path() const { return session_.run / "ptq" / "quantizer.safetensors"; }
  std::filesystem::path export_path() const { return session_.run / "export"; }
  Scores score(const std::string& name, Mode mode, const std::string& quantization);
  Candidate score_checkpoint(int64_t step);
  bool is_scored_step(int64_t step) const;
  bool is_whole_export(const Candidate& candidate) const;
  QuantizerState checkpoint_state(int64_t step) const;
  void journal(const std::string& stage, OrderedJson facts);

  Context& context_;
  Session session_;
  SessionRows rows_;
  std::unique_ptr<TextWorker> text_;
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<Decoder> decoder_;   // made at first use: a finished run is reported without loading the model
  int64_t every_ = 1;
};

/// The table of tasks for people: task, BF16, PTQ, QAD, recovered %.
std::string recovery_table(const Scores& bf16, const Scores& ptq, const Scores& qad);

}  // namespace scalewright
