#include "cli/top_command.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "cli/json.h"
#include "cli/live_screen.h"
#include "cli/top_frame.h"

namespace rekindle::cli {
namespace {

constexpr double kLeastInterval = 0.1, kLongestInterval = 3600;

// The store's totals are for administrators; others see what they have themselves.
absl::Status AddImages(Client& client, TopFigures* figures) {
  absl::StatusOr<v1::GetStatsResponse> stats = client.GetStats({});
  if (stats.ok()) {
    figures->images = stats->images();
    figures->stored_bytes = stats->pack_bytes() + stats->metadata_bytes();
    figures->logical_bytes = stats->logical_bytes();
    figures->free_bytes = stats->free_bytes();
    return absl::OkStatus();
  }
  if (absl::IsNotFound(stats.status())) return absl::OkStatus();  // the first image makes the store
  if (!absl::IsPermissionDenied(stats.status())) return stats.status();
  RK_ASSIGN_OR_RETURN(v1::ListImagesResponse images, client.ListImages({}));
  figures->images = static_cast<uint64_t>(images.images_size());
  for (const v1::Image& image : images.images()) {
    figures->stored_bytes += static_cast<uint64_t>(image.stored_bytes());
    figures->logical_bytes += static_cast<uint64_t>(image.logical_bytes());
  }
  return absl::OkStatus();
}

absl::StatusOr<TopFigures> Ask(Client& client) {
  TopFigures figures;
  v1::ListJobsRequest request;
  request.set_all(true);
  RK_ASSIGN_OR_RETURN(v1::ListJobsResponse all, client.ListJobs(request));
  // Of those that have ended, only what needs somebody's attention.
  for (v1::Job& job : *all.mutable_jobs()) {
    const std::string& phase = job.supervised().phase();
    if (phase != "failed" && (job.state() == "exited" || phase == "done")) continue;
    *figures.jobs.add_jobs() = std::move(job);
  }
  RK_RETURN_IF_ERROR(AddImages(client, &figures));
  return figures;
}

void AddTime(TopFigures* figures) {
  figures->now_unix_ns = UnixNanos();
  figures->time_of_day =
      absl::FormatTime("%H:%M:%S", absl::FromUnixNanos(figures->now_unix_ns), absl::LocalTimeZone());
}

std::string JsonLine(const TopFigures& figures) {
  nlohmann::ordered_json line = nlohmann::ordered_json::parse(ToJson(figures.jobs));
  line["images"] = {{"count", figures.images},
                    {"stored_bytes", figures.stored_bytes},
                    {"logical_bytes", figures.logical_bytes},
                    {"free_bytes", nullptr}};
  if (figures.free_bytes) line["images"]["free_bytes"] = *figures.free_bytes;
  line["unix_ns"] = figures.now_unix_ns;
  return line.dump() + "\n";
}

// The signal that ends the command, once it has come. Thread-safe.
class Ending {
 public:
  void Set(int signal) {
    absl::MutexLock lock(&mutex_);
    signal_ = signal;
  }
  int signal() const {
    absl::MutexLock lock(&mutex_);
    return signal_;
  }
  bool WaitFor(absl::Duration timeout) const {
    absl::MutexLock lock(&mutex_);
    return AwaitUntil(mutex_,
                      absl::Condition(
                          +[](const int* signal) { return *signal != 0; }, &signal_),
                      Deadline(timeout));
  }

 private:
  mutable absl::Mutex mutex_;
  int signal_ ABSL_GUARDED_BY(mutex_) = 0;
};

int PrintLines(Client& client, const Output& output, Interrupts& interrupts, const TopRequest& request) {
  Ending ending;
  interrupts.SetAction([&](int signal) { ending.Set(signal); });
  int code = kDone;
  bool first = true;
  std::string trouble;
  do {
    absl::StatusOr<TopFigures> figures = Ask(client);
    if (!figures.ok() && first) {
      code = output.Fail(figures.status());
      break;
    }
    first = false;
    // The daemon may be back soon.
    if (!figures.ok()) {
      const std::string why(figures.status().message());
      if (std::exchange(trouble, why) != why) output.Warning(absl::StrCat(why, "; it is asked again"));
      continue;
    }
    trouble.clear();
    AddTime(&*figures);
    PrintResult(JsonLine(*figures));
    if (!ResultsWritten().ok()) break;
  } while (!request.once && !ending.WaitFor(absl::Seconds(request.interval_seconds)));
  interrupts.SetAction(nullptr);
  return ending.signal() != 0 ? 128 + ending.signal() : code;
}

int PrintFrame(Client& client, const Output& output) {
  absl::StatusOr<TopFigures> figures = Ask(client);
  if (!figures.ok()) return output.Fail(figures.status());
  AddTime(&*figures);
  std::string text;
  for (const TopLine& line : LayOutTop(*figures, {})) absl::StrAppend(&text, line.text, "\n");
  output.Text(text);
  return kDone;
}

int ShowLive(Client& client, const Output& output, Interrupts& interrupts, const TopRequest& request) {
  absl::StatusOr<TopFigures> first = Ask(client);
  if (!first.ok()) return output.Fail(first.status());
  TopFigures figures = *std::move(first);
  Ending ending;
  {
    LiveScreen screen(STDIN_FILENO, STDOUT_FILENO);
    interrupts.SetAction([&](int signal) {
      ending.Set(signal);
      screen.Interrupt();
    });
    const absl::Duration interval = absl::Seconds(request.interval_seconds);
    absl::Time next = SteadyNow() + interval;
    for (;;) {
      AddTime(&figures);
      screen.Show(LayOutTop(figures, screen.size()));
      const LiveScreen::Event event = screen.Wait(next - SteadyNow());
      if (event == LiveScreen::Event::kQuit || event == LiveScreen::Event::kInterrupted) break;
      if (event == LiveScreen::Event::kResized) continue;
      next = SteadyNow() + interval;
      // What was last known stays where the daemon does not answer: it may be back soon.
      absl::StatusOr<TopFigures> now = Ask(client);
      if (now.ok()) {
        figures = *std::move(now);
      } else {
        figures.trouble = std::string(now.status().message());
      }
    }
    interrupts.SetAction(nullptr);
  }
  return ending.signal() != 0 ? 128 + ending.signal() : kDone;
}

// CLI11's own check of a range lets "nan" through.
std::string CheckInterval(const std::string& text) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && seconds >= kLeastInterval && seconds <= kLongestInterval) return "";
  return absl::StrCat("'", text, "' is no interval: write ", kLeastInterval, " to ", kLongestInterval,
                      " seconds");
}

}  // namespace

void TopArguments::AddTo(CLI::App& app) {
  CLI::App* top = app.add_subcommand("top", "Show what jobs do, again and again: steps, images, restarts");
  top->fallthrough();
  top->footer(
      "Examples:\n"
      "  rekindle top\n"
      "  rekindle top --interval 5\n"
      "  rekindle top --once\n"
      "  rekindle top --json | jq '.jobs[].progress.step'\n"
      "'q' ends it. Where standard output is no terminal, it shows what there is once.\n");
  top->add_option("--interval", request_.interval_seconds, "From one refresh to the next [1]")
      ->type_name("SECONDS")
      ->check(CheckInterval);
  top->add_flag("--once", request_.once, "Print what there is once, as plain text");
}

int ShowTop(Client& client, const Output& output, Interrupts& interrupts, const TopRequest& request) {
  if (output.json()) return PrintLines(client, output, interrupts, request);
  if (request.once || ::isatty(STDOUT_FILENO) != 1) return PrintFrame(client, output);
  return ShowLive(client, output, interrupts, request);
}

}  // namespace rekindle::cli
