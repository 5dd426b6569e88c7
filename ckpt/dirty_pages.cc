#include "ckpt/dirty_pages.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "ckpt/pagemap_entry.h"
#include "dedup_store/store.h"

namespace rekindle::ckpt {
namespace {

// Entries of a pagemap that are read at once.
constexpr size_t kEntries = 8192;
// What is shorter costs more as a piece of its own than to copy.
constexpr uint64_t kLeastCleanBytes = 16 * store::kPageSize;

// 0: not in memory, or not told.
uint64_t FrameOf(uint64_t entry) { return (entry & ENTRY_PRESENT) != 0 ? entry & ENTRY_FRAME : 0; }

}  // namespace

absl::StatusOr<std::unique_ptr<DirtyPages>> DirtyPages::Open() {
  std::unique_ptr<PageMarks> marks = KernelPageMarks();
  RK_RETURN_IF_ERROR(CheckPageMarks(*marks));
  return std::make_unique<DirtyPages>(std::move(marks));
}

absl::StatusOr<DirtyPages::Process> DirtyPages::ArmProcess(pid_t pid,
                                                           const std::vector<AddressRange>& memory) {
  Process process;
  RK_ASSIGN_OR_RETURN(process.start_ticks, marks_->StartTicks(pid));
  std::vector<Frames> all;
  for (const AddressRange& range : memory) {
    if (range.end - range.start < kLeastCleanBytes) continue;  // of which nothing would be left out
    Frames frames;
    frames.first_page = range.start / store::kPageSize;
    frames.frames.resize((range.end - range.start) / store::kPageSize);
    RK_ASSIGN_OR_RETURN(size_t read, marks_->Read(pid, frames.first_page, absl::MakeSpan(frames.frames)));
    frames.frames.resize(read);
    for (uint64_t& entry : frames.frames) entry = FrameOf(entry);
    all.push_back(std::move(frames));
  }
  std::sort(all.begin(), all.end(),
            [](const Frames& a, const Frames& b) { return a.first_page < b.first_page; });
  process.memory = std::make_shared<const std::vector<Frames>>(std::move(all));
  RK_RETURN_IF_ERROR(marks_->Clear(pid));
  return process;
}

uint64_t DirtyPages::Arm(const TaskRanges& memory) {
  uint64_t generation;
  {
    absl::MutexLock lock(&mutex_);
    generation = ++generation_;
    // Their marks are about to go, and with them what the old notes were worth.
    for (const auto& [pid, ranges] : memory) processes_.erase(pid);
  }
  for (const auto& [pid, ranges] : memory) {
    absl::StatusOr<Process> process = ArmProcess(pid, ranges);
    if (!process.ok()) {
      Log(LogLevel::kWarning, absl::StrCat("the next image of process ", pid,
                                           " copies all of its memory: ", process.status().message()));
      continue;
    }
    process->generation = generation;
    absl::MutexLock lock(&mutex_);
    processes_[pid] = *std::move(process);
  }
  return generation;
}

void DirtyPages::Committed(uint64_t generation, const std::string& image_digest) {
  absl::MutexLock lock(&mutex_);
  for (auto it = processes_.begin(); it != processes_.end();) {
    Process& process = it->second;
    if (process.generation == generation) process.image_digest = image_digest;
    absl::StatusOr<uint64_t> start = marks_->StartTicks(it->first);
    const bool ended = start.ok() ? *start != process.start_ticks : absl::IsNotFound(start.status());
    it = ended ? processes_.erase(it) : std::next(it);
  }
}

std::vector<AddressRange> DirtyPages::CleanRanges(pid_t pid, const std::string& image_digest,
                                                  AddressRange range) {
  // Before anything is looked up: a process may have tens of thousands of these.
  if (range.end - range.start < kLeastCleanBytes) return {};
  Process process;
  {
    absl::MutexLock lock(&mutex_);
    auto it = processes_.find(pid);
    if (it == processes_.end() || it->second.image_digest.empty() ||
        it->second.image_digest != image_digest) {
      return {};
    }
    process = it->second;
  }
  absl::StatusOr<uint64_t> start = marks_->StartTicks(pid);
  if (!start.ok() || *start != process.start_ticks) return {};
  std::vector<AddressRange> clean;
  const auto end_of = [](const Frames& frames) {
    return (frames.first_page + frames.frames.size()) * store::kPageSize;
  };
  auto frames = std::partition_point(process.memory->begin(), process.memory->end(),
                                     [&](const Frames& one) { return end_of(one) <= range.start; });
  for (; frames != process.memory->end() && frames->first_page * store::kPageSize < range.end; ++frames) {
    const AddressRange common{std::max(range.start, frames->first_page * store::kPageSize),
                              std::min(range.end, end_of(*frames))};
    if (common.start < common.end) AddClean(pid, *frames, common, &clean);
  }
  std::erase_if(clean, [](const AddressRange& r) { return r.end - r.start < kLeastCleanBytes; });
  return clean;
}

void DirtyPages::AddClean(pid_t pid, const Frames& frames, AddressRange range,
                          std::vector<AddressRange>* clean) {
  std::vector<uint64_t> entries;
  const uint64_t end = range.end / store::kPageSize;
  for (uint64_t page = range.start / store::kPageSize; page < end; page += entries.size()) {
    entries.resize(std::min<uint64_t>(kEntries, end - page));
    absl::StatusOr<size_t> read = marks_->Read(pid, page, absl::MakeSpan(entries));
    if (!read.ok()) return;
    for (size_t i = 0; i < *read; ++i) {
      const uint64_t frame = FrameOf(entries[i]);
      const uint64_t address = (page + i) * store::kPageSize;
      if (frame == 0 || frame != frames.frames[page + i - frames.first_page] ||
          (entries[i] & ENTRY_WRITTEN) != 0) {
        continue;
      }
      if (!clean->empty() && clean->back().end == address) {
        clean->back().end += store::kPageSize;
      } else {
        clean->push_back({address, address + store::kPageSize});
      }
    }
    if (*read < entries.size()) return;
  }
}

}  // namespace rekindle::ckpt
