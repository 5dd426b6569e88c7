#include "cli/sim_command.h"

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "cli/number_checks.h"
#include "cli/target_file.h"
#include "functions/contender.h"
#include "functions/simulation_plot.h"
#include "functions/simulation_report.h"
#include "functions/trace_generator.h"

namespace rekindle::cli {
namespace {

// An error of a named file says which one it is, and what the caller can do is in it: bad input is not bad
// usage.
absl::Status AsFailure(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? absl::FailedPreconditionError(status.message()) : status;
}

absl::Status Generate(const Output& output, const SimRequest& request) {
  RK_ASSIGN_OR_RETURN(
      functions::GeneratedTrace trace,
      functions::GenerateTrace({request.generate, request.functions, request.days, request.seed}));
  if (output.json()) {
    PrintResult(nlohmann::ordered_json{{"files", trace.files},
                                       {"functions", trace.functions},
                                       {"apps", trace.apps},
                                       {"invocations", trace.invocations}}
                    .dump() +
                "\n");
  } else {
    output.Text(absl::StrFormat("%d invocations of %d functions in %d applications: %d files in %s\n",
                                trace.invocations, trace.functions, trace.apps, trace.files.size(),
                                request.generate));
  }
  return absl::OkStatus();
}

// Whether it can be written is known before anything is simulated.
class PlotFile {
 public:
  static absl::StatusOr<PlotFile> Create(const std::string& path) {
    PlotFile plot;
    RK_ASSIGN_OR_RETURN(const Target target, FindTarget(path));
    if (target.in_place) {
      RK_ASSIGN_OR_RETURN(plot.stream_, OpenInPlace(target));
    } else {
      RK_ASSIGN_OR_RETURN(TargetFile file, TargetFile::Create(target.path, 0644));
      plot.file_.emplace(std::move(file));
    }
    plot.path_ = path;
    return plot;
  }

  absl::Status Write(const std::string& svg) {
    if (!file_) return WriteFully(stream_.get(), svg.data(), svg.size(), path_);
    RK_RETURN_IF_ERROR(file_->Write(svg));
    return file_->Complete();
  }

 private:
  std::string path_;
  std::optional<TargetFile> file_;
  UniqueFd stream_;
};

absl::Status Replay(const Output& output, const SimRequest& request) {
  functions::SimulationModel model;
  if (!request.model.empty()) {
    RK_ASSIGN_OR_RETURN(std::string json, ReadFile(request.model));
    RK_RETURN_IF_ERROR(functions::ApplyJson(json, request.model, &model));
  }
  if (request.print_model) {
    const std::string json = functions::ToJson(model);
    PrintResult((output.json() ? nlohmann::ordered_json::parse(json).dump() : json) + "\n");
    return absl::OkStatus();
  }
  functions::SimulationOptions options;
  options.traces = request.traces;
  options.policies = request.policies;
  options.seed = request.seed;
  options.budgets.slow_start_ms = request.slow_ms;
  RK_ASSIGN_OR_RETURN(options.budgets.memory_bytes, ParseBytes(request.memory));
  if (!request.disk.empty()) {
    RK_ASSIGN_OR_RETURN(options.budgets.disk_bytes, ParseBytes(request.disk));
  }
  std::optional<PlotFile> plot;
  if (!request.plot.empty()) {
    absl::StatusOr<PlotFile> file = PlotFile::Create(request.plot);
    if (!file.ok()) {
      return Annotate(file.status(),
                      absl::StrCat("nothing was simulated, for the plot can't be written to ", request.plot,
                                   " (name a file in a folder that is there and that you may write to)"));
    }
    plot.emplace(*std::move(file));
  }
  const bool progress = !output.json() && ::isatty(STDERR_FILENO) == 1;
  if (progress) {
    options.progress = [last = -1](double done) mutable {
      if (auto percent = static_cast<int>(done * 100); percent != last) {
        last = percent;
        std::fprintf(stderr, "\r\x1b[Ksimulate  %3d %%", percent);
      }
    };
  }
  absl::StatusOr<functions::SimulationResult> result = functions::Simulate(model, options);
  if (progress) std::fputs("\r\x1b[K", stderr);
  if (!result.ok()) return result.status();
  // First what took the time, which the plot must not cost if it fails all the same.
  if (output.json()) {
    PrintResult(functions::ReportJson(*result, model, options) + "\n");
  } else {
    output.Text(functions::ReportText(*result, options));
  }
  if (!plot) return absl::OkStatus();
  return Annotate(plot->Write(functions::PlotSvg(*result, options)), "the plot was not written");
}

}  // namespace

void SimArguments::AddTo(CLI::App& app) {
  sim_ =
      app.add_subcommand("sim", "Replay invocations of functions against policies of what is kept of them");
  sim_->fallthrough();
  sim_->footer(
      "Examples:\n"
      "  rekindle sim --generate /tmp/trace --functions 1000 --days 1 --seed 1\n"
      "  rekindle sim --trace /tmp/trace/*.csv --memory 64G --plot /tmp/sim.svg\n"
      "  rekindle sim --print-model > model.json && rekindle sim --trace /tmp/trace/*.csv --model "
      "model.json\n"
      "The traces are in the format of the Azure Functions dataset of 2019; docs/simulator.md says what is "
      "modelled.\n");
  sim_->add_option("--trace", request_.traces, "Invocations, durations and memory, of one or more days")
      ->type_name("FILE");
  sim_->add_option("--memory", request_.memory, "Memory that every policy has [64G]")->type_name("SIZE");
  sim_->add_option("--disk", request_.disk, "Disk that every policy has [unlimited]")->type_name("SIZE");
  sim_->add_option("--policies", request_.policies, "Only these: none, fixed, snapshot, hotswap, rekindle")
      ->type_name("POLICY")
      ->check(CLI::IsMember(functions::ContenderNames()));
  sim_->add_option("--model", request_.model,
                   "Times of starts and sizes that differ from the defaults (JSON)")
      ->type_name("FILE");
  sim_->add_flag("--print-model", request_.print_model, "Only print the model that applies");
  sim_->add_option("--slow-ms", request_.slow_ms, "A start that takes longer is slow [100]")
      ->type_name("MS")
      ->check(CLI::Range(0.001, 1e9))
      ->check(AboveZero());  // a range takes what is no number
  sim_->add_option("--plot", request_.plot, "Write a plot over time here (SVG)")->type_name("FILE");
  sim_->add_option("--generate", request_.generate,
                   "Make traces of the published skew in this folder instead")
      ->type_name("DIR");
  sim_->add_option("--functions", request_.functions, "So many functions [1000]")
      ->type_name("NUMBER")
      ->check(CLI::Range(1, 1'000'000));
  sim_->add_option("--days", request_.days, "So many days [1]")
      ->type_name("NUMBER")
      ->check(CLI::Range(1, 99));
  sim_->add_option("--seed", request_.seed, "Of what is drawn at random [1]")->type_name("NUMBER");
}

absl::StatusOr<SimRequest> SimArguments::Finish() const {
  const int given = !request_.traces.empty() + !request_.generate.empty() + request_.print_model;
  if (given != 1) {
    return absl::InvalidArgumentError("give one of --trace FILE…, --generate DIR and --print-model");
  }
  RK_RETURN_IF_ERROR(ParseBytes(request_.memory).status());
  if (!request_.disk.empty()) RK_RETURN_IF_ERROR(ParseBytes(request_.disk).status());
  return request_;
}

ExitCode RunSimulation(const Output& output, const SimRequest& request) {
  absl::Status status = request.generate.empty() ? Replay(output, request) : Generate(output, request);
  return status.ok() ? kDone : output.Fail(AsFailure(status));
}

}  // namespace rekindle::cli
