#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/timeline.h"
#include "cli/timeline.h"

namespace rekindle::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNanosPerMicrosecond = 1000;

Json NameEvent(const char* what, int pid, int tid, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
}

}  // namespace

std::string ChromeTrace(const std::vector<v1::Timeline>& timelines) {
  int64_t zero = std::numeric_limits<int64_t>::max();
  for (const v1::Timeline& timeline : timelines) {
    for (const v1::Span& span : timeline.spans()) zero = std::min<int64_t>(zero, span.begin_ns());
  }
  Json events = Json::array();
  int last_process = 0;
  for (const v1::Timeline& timeline : timelines) {
    Timeline spans;
    for (const v1::Span& span : timeline.spans()) {
      spans.push_back({span.process(),
                       span.thread(),
                       span.name(),
                       span.begin_ns(),
                       span.duration_ns(),
                       {span.numbers().begin(), span.numbers().end()}});
    }
    MakeSpansNest(&spans);
    // The numbers of processes are the viewer's: the same process may take part in several timelines.
    std::map<std::string, int> processes;
    std::map<std::pair<std::string, std::string>, int> threads;
    for (const Span& span : spans) {
      auto [process, new_process] = processes.try_emplace(span.process, last_process + 1);
      if (new_process) {
        ++last_process;
        events.push_back(NameEvent(
            "process_name", process->second, 0,
            timelines.size() == 1 ? span.process : absl::StrCat(span.process, " for PID ", timeline.pid())));
      }
      auto [thread, new_thread] =
          threads.try_emplace({span.process, span.thread}, static_cast<int>(threads.size()) + 1);
      if (new_thread) {
        events.push_back(NameEvent("thread_name", process->second, thread->second, span.thread));
      }
      events.push_back({{"ph", "X"},
                        {"name", span.name},
                        {"cat", span.process},
                        {"pid", process->second},
                        {"tid", thread->second},
                        {"ts", static_cast<double>(span.begin_ns - zero) / kNanosPerMicrosecond},
                        {"dur", static_cast<double>(span.duration_ns) / kNanosPerMicrosecond},
                        {"args", span.numbers}});
    }
  }
  const Json trace = {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<TraceFile> TraceFile::Create(const std::string& path) {
  const auto annotated = [&path](const absl::Status& status) {
    return Annotate(status, absl::StrCat("nothing was started, for its timeline can't be written to ", path,
                                         " (name a file in a folder that you may write to)"));
  };
  absl::StatusOr<Target> target = FindTarget(path);
  if (!target.ok()) return annotated(target.status());
  if (target->in_place) {
    return absl::InvalidArgumentError(
        absl::StrCat("writing the timeline to ", path,
                     ": it is a folder, a device, a pipe or a descriptor; name a regular file"));
  }
  absl::StatusOr<TargetFile> file = TargetFile::Create(target->path, 0644);
  if (!file.ok()) return annotated(file.status());
  return TraceFile(*std::move(file));
}

absl::Status TraceFile::Write(const std::string& content) {
  RK_RETURN_IF_ERROR(file_.Write(content));
  return file_.Complete();
}

}  // namespace rekindle::cli
