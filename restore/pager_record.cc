#include "restore/pager_record.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rekindle::restore {
namespace {

using Json = nlohmann::json;

constexpr char kProcess[] = "pager";

// Of the calling thread; small, so that the timeline has few of them.
int ThreadNumber() {
  static std::atomic<int> threads{0};
  thread_local const int number = ++threads;
  return number;
}

}  // namespace

absl::StatusOr<FrameCache::Pin> PagerRecord::GetOrLoad(FrameCache& cache, const store::ImageReader& image,
                                                       store::FrameId frame, Loaded* loaded) {
  return cache.GetOrLoad(frame, image.FramePages(frame),
                         [&image, loaded](store::FrameId id, absl::Span<std::byte> out) {
                           ++loaded->frames;
                           loaded->bytes += out.size();
                           return image.LoadFrame(id, out);
                         });
}

absl::Status PagerRecord::GetAll(FrameCache& cache, const store::ImageReader& image,
                                 absl::Span<const store::FrameId> frames, const FrameCache::FrameReady& ready,
                                 Loaded* loaded) {
  auto pages_of = [&image](store::FrameId frame) { return image.FramePages(frame); };
  auto load = [&image, loaded](absl::Span<const store::FrameId> wanted,
                               const store::ImageReader::FrameTarget& where,
                               const store::ImageReader::FrameLoaded& then) {
    return image.LoadFrames(wanted, where, [&](size_t i) {
      ++loaded->frames;
      loaded->bytes += uint64_t{image.FramePages(wanted[i])} * store::kPageSize;
      return then(i);
    });
  };
  return cache.GetAll(frames, pages_of, load, ready);
}

void PagerRecord::Add(absl::string_view thread, absl::string_view name, int64_t begin_ns,
                      std::map<std::string, int64_t> numbers) {
  if (!wanted_) return;
  Span span = SpanSince(begin_ns, kProcess, std::string(thread), std::string(name), std::move(numbers));
  absl::MutexLock lock(&mutex_);
  spans_.push_back(std::move(span));
}

void PagerRecord::AddFault(const Fault& fault) {
  if (!wanted_) return;
  const int64_t duration = MonotonicNanos() - fault.begin_ns;
  absl::MutexLock lock(&mutex_);
  if (faults_.size() >= kMostFaults) {
    ++faults_left_out_;
    return;
  }
  faults_.push_back({ThreadNumber(), fault.begin_ns, duration, static_cast<int64_t>(fault.address),
                     int64_t{fault.pages}, int64_t{fault.loaded}});
}

void PagerRecord::JobRuns() {
  if (!wanted_) return;
  absl::MutexLock lock(&mutex_);
  runs_since_ns_ = MonotonicNanos();
}

std::string PagerRecord::Encode(std::map<std::string, int64_t> numbers) const {
  Json spans = Json::array();
  auto add = [&](const Span& span) {
    spans.push_back({span.thread, span.name, span.begin_ns, span.duration_ns, span.numbers});
  };
  absl::MutexLock lock(&mutex_);
  for (const Span& span : spans_) add(span);
  if (runs_since_ns_ > 0) {
    if (faults_left_out_ > 0) numbers["faults_not_shown"] = static_cast<int64_t>(faults_left_out_);
    add(SpanSince(runs_since_ns_, kProcess, "job", "serving", std::move(numbers)));
  }
  return Json{{"spans", std::move(spans)}, {"faults", faults_}}.dump(-1, ' ', false,
                                                                     Json::error_handler_t::replace);
}

absl::StatusOr<Timeline> PagerRecord::Decode(absl::string_view text) {
  Timeline timeline;
  try {
    const Json json = Json::parse(text.begin(), text.end());
    for (const Json& entry : json.at("spans")) {
      Span span;
      span.process = kProcess;
      span.thread = entry.at(0).get<std::string>();
      span.name = entry.at(1).get<std::string>();
      span.begin_ns = entry.at(2).get<int64_t>();
      span.duration_ns = entry.at(3).get<int64_t>();
      span.numbers = entry.at(4).get<std::map<std::string, int64_t>>();
      timeline.push_back(std::move(span));
    }
    for (const Json& entry : json.at("faults")) {
      const auto fault = entry.get<std::array<int64_t, 6>>();
      Span span;
      span.process = kProcess;
      span.thread = absl::StrCat("faults ", fault[0]);
      span.name = fault[4] == 0 ? "zero fault" : "fault";
      span.begin_ns = fault[1];
      span.duration_ns = fault[2];
      span.numbers = {{"address", fault[3]}, {"pages", fault[4]}, {"loaded", fault[5]}};
      timeline.push_back(std::move(span));
    }
  } catch (const Json::exception& e) {
    return absl::DataLossError(absl::StrCat("the pager's timeline makes no sense: ", e.what()));
  }
  return timeline;
}

}  // namespace rekindle::restore
