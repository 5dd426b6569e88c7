// Which pages of an image a job touches before it is ready, in the order in which it first touches them: what
// a lazy restore puts in place before it lets the job run. Learned by restoring, kept beside the image
// (store::kWorkingSetNote), refined by each restore that follows.
//
// Pure, no I/O; not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/store.h"

namespace rekindle::restore {

// Neighbouring pages of an object that were touched one after the other.
struct TouchedRun {
  uint32_t object = 0;   // a position in WorkingSet::objects
  uint64_t address = 0;  // bytes, page-aligned
  uint32_t pages = 0;    // not 0
  uint8_t recent = 1;    // which of the last 8 recordings had it: bit 0 is the last one
  friend bool operator==(const TouchedRun& a, const TouchedRun& b) = default;
};

// What a recording ended with.
enum class RecordingEnd : uint8_t {
  kUnknown = 0,
  kReady = 1,     // the job said that it is ready
  kAnswered = 2,  // it answered on a socket that it listens on
  kTime = 3,      // it was given so much time
  kEnded = 4,     // the job ended, or had all of its memory
};

struct WorkingSet {
  static constexpr uint32_t kRecordingsRemembered = 8;  // bits of TouchedRun::recent

  std::vector<std::string> objects;           // names of paged objects, in the order of their first runs
  std::vector<TouchedRun> runs;               // in the order of the first touch; no page is in two of them
  uint32_t recordings = 0;                    // that it was made from
  int64_t recorded_unix_ns = 0;               // the last of them; 0: not known
  RecordingEnd end = RecordingEnd::kUnknown;  // of the last of them

  bool empty() const { return runs.empty(); }
  uint64_t pages() const;
  friend bool operator==(const WorkingSet& a, const WorkingSet& b) = default;

  std::string Encode() const;
  // DataLoss: the bytes are no working set.
  static absl::StatusOr<WorkingSet> Decode(absl::string_view bytes);
};

class TouchedRunList;  // working_set.cc

// One recording. Pages that are added again keep their first place.
class WorkingSetRecorder {
 public:
  // The pages [address, address + pages x 4096) were touched next.
  void Add(absl::string_view object, uint64_t address, uint64_t pages);
  // What was recorded; begins anew.
  WorkingSet Take();

  WorkingSetRecorder();
  ~WorkingSetRecorder();

 private:
  std::unique_ptr<TouchedRunList> list_;
};

// What is known after one more recording: the pages of the newer one in its order, then those that only the
// older one has in that one's order. What none of the last kRecordingsRemembered recordings touched is left
// out. Time and end are the newer one's.
WorkingSet Merge(const WorkingSet& older, const WorkingSet& newer);

// What of it lies in the pages that `pages_of` gives for an object: ascending ones, none for an object that
// the image does not have.
WorkingSet Clip(const WorkingSet& set,
                const std::function<std::vector<store::PageRun>(absl::string_view object)>& pages_of);

}  // namespace rekindle::restore
