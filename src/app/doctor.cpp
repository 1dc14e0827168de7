// doctor: what this machine offers, and what to fix.
#include <sys/statvfs.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include <torch/headeronly/version.h>

#include "app/command.h"
#include "app/runtime.h"
#include "ops/cuda_build.h"

namespace scalewright {
namespace {

/// Bytes of a line such as "MemAvailable:   123 kB" of /proc/meminfo; 0 when there is none.
int64_t meminfo_bytes(const std::string& field) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(field + ":")) return std::strtoll(line.c_str() + field.size() + 1, nullptr, 10) * 1024;
  return 0;
}

int64_t free_disk_bytes() {
  struct statvfs info {};
  return statvfs(".", &info) == 0 ? static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize) : 0;
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> found;
  if (__builtin_cpu_supports("avx2")) found.push_back("avx2");
  if (__builtin_cpu_supports("fma")) found.push_back("fma");
  if (__builtin_cpu_supports("avx512f")) found.push_back("avx512f");
  if (__builtin_cpu_supports("avx512vnni")) found.push_back("avx512vnni");
  if (__builtin_cpu_supports("avx512bf16")) found.push_back("avx512bf16");
  if (__builtin_cpu_supports("amx-bf16")) found.push_back("amx-bf16");
  return found;
}

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// The interpreter of the text worker and the versions of what it needs; an `error` instead when it does not work.
OrderedJson ask_python() {
  const char* variable = std::getenv("SCALEWRIGHT_PYTHON");
  const std::string python = variable && *variable ? variable : "python3";
  OrderedJson answer = {{"interpreter", python}};
  const std::string program =
      "import json, platform, importlib.metadata as m\n"
      "def version(name):\n"
      "    try: return m.version(name)\n"
      "    except m.PackageNotFoundError: return None\n"
      "print(json.dumps({'python': platform.python_version(), **{n: version(n) for n in ('transformers', 'tokenizers', "
      "'jinja2')}}))\n";
  std::string output;
  FILE* pipe = popen((shell_quoted(python) + " -c " + shell_quoted(program) + " 2>/dev/null").c_str(), "r");
  if (pipe) {
    std::array<char, 4096> buffer;
    for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) output.append(buffer.data(), n);
  }
  const bool worked = pipe && pclose(pipe) == 0;
  const Json versions = Json::parse(output, nullptr, false);
  if (!worked || !versions.is_object()) {
    answer["error"] = "does not run";
    return answer;
  }
  for (const auto& [name, version] : versions.items()) answer[name] = version;
  return answer;
}

/// What keeps something from working, each with its remedy.
std::vector<std::string> find_problems(const OrderedJson& report) {
  std::vector<std::string> problems;
  const auto& python = report["python"];
  if (python.contains("error")) {
    problems.push_back(
        fmt::format("the Python interpreter '{}' does not run: text cannot be tokenized; set SCALEWRIGHT_PYTHON, or "
                    "start the program with ./run scalewright",
                    python["interpreter"].get<std::string>()));
  } else {
    for (const char* name : {"transformers", "tokenizers", "jinja2"})
      if (python[name].is_null())
        problems.push_back(
            fmt::format("the Python package {} is missing for '{}': run `{} -m pip install -r requirements.txt`", name,
                        python["interpreter"].get<std::string>(), python["interpreter"].get<std::string>()));
  }
  const auto& features = report["cpu"]["features"];
  if (std::find(features.begin(), features.end(), "avx2") == features.end())
    problems.push_back("the CPU has no AVX2: everything works, slowly");
  if (report["device"]["cuda"].get<bool>() && !report["device"]["kernels"].get<bool>())
    problems.push_back("a GPU can be used, but this build has no CUDA kernels, so quantized models run on the CPU only: configure with -DSCALEWRIGHT_CUDA=ON (docs/cuda.md)");
  constexpr int64_t kGiB = 1ll << 30;
  if (report["disk"]["free_bytes"] < kGiB)
    problems.push_back("less than 1 GiB of disk is free here: checkpoints and exports will not fit");
  if (report["memory"]["available_bytes"] < kGiB) problems.push_back("less than 1 GiB of memory is available");
  return problems;
}

class DoctorCommand : public Command {
 public:
  std::string name() const override { return "doctor"; }
  std::string summary() const override { return "what this machine offers, and what to fix"; }
  std::vector<Option> options() override { return {}; }

  ExitCode run(Context& context) override {
    OrderedJson report = {
        {"version", SCALEWRIGHT_VERSION},
        {"libtorch", TORCH_VERSION},
        {"cpu",
         {{"cores", std::thread::hardware_concurrency()},
          {"threads", at::get_num_threads()},
          {"features", cpu_features()}}},
        {"memory", {{"total_bytes", meminfo_bytes("MemTotal")}, {"available_bytes", meminfo_bytes("MemAvailable")}}},
        {"disk", {{"folder", std::filesystem::current_path().string()}, {"free_bytes", free_disk_bytes()}}},
        {"device",
         {{"cuda", at::hasCUDA()},
          {"kernels", kCudaBuild},
          {"used", context.compute.device.str()},
          {"dtype", compute_dtype_name(context.compute.dtype)}}},
        {"ranks", context.mesh.size()},
        {"python", ask_python()},
    };
    report["problems"] = find_problems(report);
    if (context.common.json) {
      print_json(report);
    } else {
      print_text(as_text(report));
    }
    return ExitCode::kOk;
  }

 private:
  static std::string as_text(const OrderedJson& report) {
    const auto gib = [](const OrderedJson& bytes) { return bytes.get<double>() / (1ll << 30); };
    std::string features;
    for (const auto& feature : report["cpu"]["features"]) features += " " + feature.get<std::string>();
    std::string text;
    text += fmt::format("scalewright {} on libtorch {}\n", report["version"].get<std::string>(),
                        report["libtorch"].get<std::string>());
    text += fmt::format("cpu      {} cores, {} threads,{}\n", report["cpu"]["cores"].get<int>(),
                        report["cpu"]["threads"].get<int>(), features);
    text += fmt::format("memory   {:.1f} GiB, {:.1f} available\n", gib(report["memory"]["total_bytes"]),
                        gib(report["memory"]["available_bytes"]));
    text += fmt::format("disk     {:.1f} GiB free in {}\n", gib(report["disk"]["free_bytes"]),
                        report["disk"]["folder"].get<std::string>());
    text +=
        fmt::format("device   {}, {} (CUDA: {}; CUDA kernels built: {})\n", report["device"]["used"].get<std::string>(),
                    report["device"]["dtype"].get<std::string>(), report["device"]["cuda"].get<bool>() ? "yes" : "no",
                    report["device"]["kernels"].get<bool>() ? "yes" : "no");
    text += fmt::format("ranks    {}\n", report["ranks"].get<int>());
    text += "python  ";
    for (const auto& [name, value] : report["python"].items())
      text += fmt::format(" {} {}", name, value.is_string() ? value.get<std::string>() : "missing");
    text += "\n";
    if (report["problems"].empty()) text += "nothing to fix\n";
    for (const auto& problem : report["problems"]) text += fmt::format("fix: {}\n", problem.get<std::string>());
    return text;
  }
};

}  // namespace

std::unique_ptr<Command> make_doctor_command() { return std::make_unique<DoctorCommand>(); }

}  // namespace scalewright
