// How pages come into a copy that nobody waits for: what it needs before it runs, and the background fill.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/parallel.h"
#include "base/status.h"
#include "restore/lazy_clone.h"
#include "restore/prefill_set.h"
#include "restore/sandbox.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;

// Frames that the background fill takes at a time: it gives way between two such pieces of work.
constexpr size_t kFramesPerFill = 512;
constexpr size_t kFramesAtOnce = 32;  // that one thread takes of them
// On any machine: many copies are filled side by side, and what is filled in the background gives way anyway.
constexpr size_t kFillThreads = 2;
// Of a set, that a thread takes at a time.
constexpr size_t kPiecesAtOnce = 32;
// Fewer pages are put in sooner than another thread begins.
constexpr uint64_t kPagesWorthAThread = 512;
// Looks at a task that changes its memory, by the background fill: a fork of much memory lasts, and others
// wait.
constexpr int kLooksAtChange = 80;
constexpr double kLongestFillOfCrowded = 5;  // seconds
constexpr absl::Duration kBetweenFills = absl::Milliseconds(10);

absl::Status WriteMemory(int memory, pid_t pid, uint64_t address, absl::Span<const std::byte> bytes) {
  // Through this file read-only memory can be written too, as a debugger does.
  const ssize_t n = ::pwrite(memory, bytes.data(), bytes.size(), static_cast<off_t>(address));
  if (n == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  return ErrnoStatus(n < 0 ? errno : EIO,
                     absl::StrFormat("writing the memory of process %d at %#x", pid, address));
}

// InParallel with results: the first error, if any.
absl::Status OnThreads(size_t threads, const std::function<absl::Status(size_t i)>& part) {
  std::vector<absl::Status> results(threads);
  InParallel(threads, [&](size_t i) { results[i] = part(i); });
  for (const absl::Status& result : results) RK_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

absl::Status ForEachPiece(const std::vector<PrefillSet::Piece>& pieces,
                          const std::function<absl::Status(const PrefillSet::Piece& piece)>& use) {
  uint64_t pages = 0;
  for (const PrefillSet::Piece& piece : pieces) pages += piece.pages;
  std::atomic<size_t> next{0};
  return OnThreads(pages < kPagesWorthAThread ? 1 : kFillThreads, [&](size_t) -> absl::Status {
    for (size_t begin; (begin = next.fetch_add(kPiecesAtOnce)) < pieces.size();) {
      for (size_t i = begin; i < std::min(begin + kPiecesAtOnce, pieces.size()); ++i) {
        RK_RETURN_IF_ERROR(use(pieces[i]));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace

LazyClone::Room LazyClone::LookForRoom() const {
  Room room;
  room.left = options_.room->Left();
  if (room.left == MemoryRoom::kUnlimited) return room;
  for (const std::shared_ptr<LazyTask>& task : Tasks()) room.missing += task->missing() * kPageSize;
  return room;
}

absl::Status LazyClone::CheckRoomForAll() const {
  const Room room = LookForRoom();
  if (room.for_all()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "all of its memory is to be there (before it runs with --fill eager, or for an image), but ",
      FormatBytes(room.missing), " are missing and its limit leaves room for ", FormatBytes(room.left),
      ": give it more (--memory, or the limit of its cgroup), or leave out --fill"));
}

uint64_t LazyClone::TakeRoom(uint64_t pages) {
  uint64_t left = prefill_room_.load(std::memory_order_relaxed), taken;
  do {
    if (left == MemoryRoom::kUnlimited) return pages;
    taken = std::min(pages, left / kPageSize);
  } while (!prefill_room_.compare_exchange_weak(left, left - taken * kPageSize, std::memory_order_relaxed));
  return taken;
}

absl::Status LazyClone::PutPages(LazyTask& task, uint64_t number, uint64_t pages, const std::byte* bytes,
                                 Change change) {
  std::vector<uint64_t> faults;
  for (int attempt = 0; !ended_; ++attempt) {
    RK_ASSIGN_OR_RETURN(LazyTask::Outcome outcome, task.Put(number, pages, bytes));
    if (outcome == LazyTask::Outcome::kNoMemory) {
      return absl::ResourceExhaustedError("no memory for pages that nobody waits for");
    }
    if (outcome != LazyTask::Outcome::kChanging) break;
    // Who reads that it has forked lets it fork again: of a crowded clone, OnTask alone does.
    if (crowded_) {
      fill_again_ = true;
      break;
    }
    if (!TakeEvents(task, &faults)) break;
    // Not by this thread, on which the frames may wait that these are about.
    if (!faults.empty()) AnswerLater(task, std::exchange(faults, {}));
    // Others wait for this thread too.
    if (task.starved() > absl::ZeroDuration()) {
      fill_again_ = true;
      break;
    }
    if (change == Change::kLeave && attempt >= kLooksAtChange) {
      return absl::AbortedError("it changes its memory");
    }
    task.WaitForChange(attempt);
  }
  return absl::OkStatus();
}

namespace {

// The frames that pieces lie in, each once, and what of the pieces lies in which.
template <typename Piece>
class ByFrame {
 public:
  explicit ByFrame(const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) {
      const store::FrameId frame = piece.task->pages().runs()[piece.run].frame;
      auto [found, added] = pieces_.try_emplace(frame);
      if (added) frames_.push_back(frame);
      found->second.push_back(&piece);
    }
  }
  const std::vector<store::FrameId>& frames() const { return frames_; }
  // Calls put(task, number, pages, bytes) for each piece of frames()[i], whose bytes are `frame`.
  template <typename Put>
  absl::Status ForEach(size_t i, absl::Span<const std::byte> frame, const Put& put) const {
    for (const Piece* piece : pieces_.find(frames_[i])->second) {
      const TaskPages& pages = piece->task->pages();
      const store::StoredRun& run = pages.runs()[piece->run];
      RK_RETURN_IF_ERROR(put(*piece->task, pages.FirstNumberOf(piece->run) + piece->first, piece->pages,
                             frame.data() + (size_t{run.page_in_frame} + piece->first) * kPageSize));
    }
    return absl::OkStatus();
  }

 private:
  absl::flat_hash_map<store::FrameId, std::vector<const Piece*>> pieces_;
  std::vector<store::FrameId> frames_;
};

// Whoever answers faults waits for locks that are held while pages are put in: a thread that holds one must
// not be put off for others.
class AtNormalPriority {
 public:
  AtNormalPriority() { ::setpriority(PRIO_PROCESS, 0, 0); }
  ~AtNormalPriority() { ::setpriority(PRIO_PROCESS, 0, kBackgroundNice); }
  AtNormalPriority(const AtNormalPriority&) = delete;
  AtNormalPriority& operator=(const AtNormalPriority&) = delete;
};

// A thread's memory for one frame.
absl::Span<std::byte> OwnFrame(uint32_t pages) {
  static thread_local std::unique_ptr<std::byte[]> frame;
  if (frame == nullptr) frame.reset(new std::byte[size_t{store::kMaxPagesOfFrame} * kPageSize]);
  return {frame.get(), size_t{pages} * kPageSize};
}

}  // namespace

absl::Status LazyClone::PutPieces(const std::vector<Piece>& pieces, size_t threads,
                                  std::atomic<uint64_t>* put) {
  const ByFrame<Piece> by_frame(pieces);
  return WithFrames(by_frame.frames(), threads, [&](size_t i, absl::Span<const std::byte> frame) {
    return by_frame.ForEach(i, frame,
                            [&](LazyTask& task, uint64_t number, uint32_t pages, const std::byte* bytes) {
                              put->fetch_add(pages, std::memory_order_relaxed);
                              return PutPages(task, number, pages, bytes);
                            });
  });
}

absl::Status LazyClone::PutInBackground(const std::vector<Piece>& pieces) {
  const ByFrame<Piece> by_frame(pieces);
  const std::vector<store::FrameId>& frames = by_frame.frames();
  auto use = [&](size_t i, absl::Span<const std::byte> frame) {
    return by_frame.ForEach(i, frame,
                            [&](LazyTask& task, uint64_t number, uint32_t pages, const std::byte* bytes) {
                              AtNormalPriority until_it_is_in;
                              filled_.fetch_add(pages, std::memory_order_relaxed);
                              return PutPages(task, number, pages, bytes, Change::kLeave);
                            });
  };
  // Other copies will want the same frames; those of an image that is too large would only push out others.
  FrameCache& cache = pager_.cache();
  if (image_->pages() * kPageSize <= cache.Stats().budget_bytes / 2) return WithFrames(frames, 1, use);
  std::vector<store::FrameId> to_load;
  std::vector<size_t> positions;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (FrameCache::Pin pin = cache.Get(frames[i])) {
      RK_RETURN_IF_ERROR(use(i, pin.bytes()));
      continue;
    }
    to_load.push_back(frames[i]);
    positions.push_back(i);
  }
  std::atomic<size_t> next{0};
  // All of these threads are as ready to give way as this one.
  return OnThreads(to_load.size() <= kFramesAtOnce ? 1 : kFillThreads, [&](size_t) -> absl::Status {
    for (size_t first; (first = next.fetch_add(kFramesAtOnce)) < to_load.size();) {
      const auto frame_of = [&](size_t i) {
        return OwnFrame(image_->reader().FramePages(to_load[first + i]));
      };
      RK_RETURN_IF_ERROR(
          image_->reader().LoadFrames(absl::MakeConstSpan(to_load).subspan(first, kFramesAtOnce), frame_of,
                                      [&](size_t i) { return use(positions[first + i], frame_of(i)); }));
    }
    return absl::OkStatus();
  });
}

absl::Status LazyClone::WithFrames(
    absl::Span<const store::FrameId> frames, size_t threads,
    const std::function<absl::Status(size_t i, absl::Span<const std::byte> frame)>& use) {
  auto ready = [&](size_t begin, size_t end) {
    return PagerRecord::GetAll(
        pager_.cache(), image_->reader(), frames.subspan(begin, end - begin),
        [&](size_t index, FrameCache::Pin pin) { return use(begin + index, pin.bytes()); }, &loaded_in_bulk_);
  };
  if (threads <= 1 || frames.size() < 2 * threads) return ready(0, frames.size());
  const size_t share = (frames.size() + threads - 1) / threads;
  return OnThreads(threads, [&](size_t i) {
    return ready(std::min(frames.size(), i * share), std::min(frames.size(), (i + 1) * share));
  });
}

absl::StatusOr<std::map<pid_t, UniqueFd>> LazyClone::OpenMemories(
    const std::map<pid_t, UniqueFd>& processes) const {
  std::map<pid_t, UniqueFd> memories;
  for (const auto& [frame, runs] : image_->written()) {
    for (const LazyImage::Written& written : runs) {
      auto [memory, added] = memories.try_emplace(written.pid);
      if (!added) continue;
      auto process = processes.find(written.pid);
      if (process == processes.end()) {
        return absl::InternalError(
            absl::StrCat("process ", written.pid, " of the image is not in the sandbox"));
      }
      RK_ASSIGN_OR_RETURN(pid_t pid, PidOf(process->second.get()));
      RK_ASSIGN_OR_RETURN(memory->second, OpenFile(absl::StrCat("/proc/", pid, "/mem"), O_RDWR));
    }
  }
  return memories;
}

absl::Status LazyClone::Write(const std::map<pid_t, UniqueFd>& memories) {
  std::vector<store::FrameId> frames;
  std::vector<const std::vector<LazyImage::Written>*> of_frame;
  for (const auto& [frame, runs] : image_->written()) {
    if (frame == store::FrameId()) {
      for (const LazyImage::Written& written : runs) {
        const std::vector<std::byte> zeros(size_t{written.run.pages} * kPageSize);
        RK_RETURN_IF_ERROR(
            WriteMemory(memories.at(written.pid).get(), written.pid, written.run.address, zeros));
      }
      continue;
    }
    frames.push_back(frame);
    of_frame.push_back(&runs);
  }
  return WithFrames(frames, kFillThreads, [&](size_t i, absl::Span<const std::byte> frame) -> absl::Status {
    for (const LazyImage::Written& written : *of_frame[i]) {
      RK_RETURN_IF_ERROR(WriteMemory(memories.at(written.pid).get(), written.pid, written.run.address,
                                     frame.subspan(size_t{written.run.page_in_frame} * kPageSize,
                                                   size_t{written.run.pages} * kPageSize)));
    }
    return absl::OkStatus();
  });
}

absl::Status LazyClone::WriteSet(const PrefillSet& set, const std::map<pid_t, UniqueFd>& memories) {
  return ForEachPiece(set.written(), [&](const PrefillSet::Piece& piece) {
    return WriteMemory(memories.at(piece.pid).get(), piece.pid, piece.address,
                       {piece.bytes, piece.pages * kPageSize});
  });
}

absl::Status LazyClone::PutSet(const PrefillSet& set) {
  const auto tasks = TasksByPid();
  return ForEachPiece(set.working_set(), [&](const PrefillSet::Piece& piece) -> absl::Status {
    auto task = tasks.find(piece.pid);
    if (task == tasks.end()) return absl::OkStatus();
    const uint64_t pages = TakeRoom(piece.pages);
    if (pages > 0) RK_RETURN_IF_ERROR(PutPages(*task->second, piece.number, pages, piece.bytes));
    prefilled_.fetch_add(pages, std::memory_order_relaxed);
    if (pages == piece.pages) return absl::OkStatus();
    return absl::ResourceExhaustedError("no room for more of the working set");
  });
}

void LazyClone::Prefetch() {
  const int64_t begin = MonotonicNanos();
  if (image_->Learned()) {
    // What is wrong is found again, and told, when it is put in.
    auto prefill = pager_.PrefillOf(image_);
    if (!prefill.ok()) return;
    if (prefill->set != nullptr) {
      return record_.Add("prefetch", "prefetch", begin,
                         {{"pages", static_cast<int64_t>(prefill->set->bytes() / kPageSize)},
                          {"loaded_in_one_piece", prefill->loaded ? 1 : 0}});
    }
  }
  PagerRecord::Loaded loaded;
  std::vector<store::FrameId> frames;
  absl::flat_hash_set<store::FrameId> seen;
  for (const auto& [frame, runs] : image_->written()) {
    if (!(frame == store::FrameId()) && seen.insert(frame).second) frames.push_back(frame);
  }
  for (const LazyImage::Piece& piece : *image_->working_set()) {
    const store::FrameId frame = image_->PagesOf(piece.pid)->runs()[piece.run].frame;
    if (seen.insert(frame).second) frames.push_back(frame);
  }
  // What is wrong with them is found again, and told, when they are put in.
  PagerRecord::GetAll(
      pager_.cache(), image_->reader(), frames, [](size_t, FrameCache::Pin) { return absl::OkStatus(); },
      &loaded)
      .IgnoreError();
  record_.Add("prefetch", "prefetch", begin,
              {{"frames", static_cast<int64_t>(frames.size())},
               {"loaded_frames", static_cast<int64_t>(loaded.frames)},
               {"loaded_bytes", static_cast<int64_t>(loaded.bytes)}});
}

absl::StatusOr<uint64_t> LazyClone::Prefill(const std::map<pid_t, UniqueFd>& processes) {
  WatchSockets(processes);
  int64_t begin = MonotonicNanos();
  RK_ASSIGN_OR_RETURN(auto memories, OpenMemories(processes));
  RK_ASSIGN_OR_RETURN(LazyImage::PrefillMade prefill, pager_.PrefillOf(image_));
  const std::shared_ptr<const PrefillSet> set = std::move(prefill.set);
  RK_RETURN_IF_ERROR(set == nullptr ? Write(memories) : WriteSet(*set, memories));
  record_.Add("restore", "pages that must be there", begin,
              {{"loaded_bytes", static_cast<int64_t>(loaded_in_bulk_.bytes)}});
  begin = MonotonicNanos();
  const uint64_t loaded_before = loaded_in_bulk_.bytes;
  auto recorded = [&](absl::string_view what, uint64_t pages) {
    record_.Add("restore", what, begin,
                {{"pages", static_cast<int64_t>(pages)},
                 {"loaded_bytes", static_cast<int64_t>(loaded_in_bulk_.bytes - loaded_before)}});
  };
  if (options_.fill == Fill::kEager) {
    absl::StatusOr<uint64_t> filled = FillAll();
    if (filled.ok()) recorded("all of its memory", *filled);
    return filled;
  }
  prefill_room_ = options_.room->Left();
  absl::Status status = set == nullptr ? PutWorkingSet() : PutSet(*set);
  // Without memory for all of it, it has to do with what it touches.
  if (!status.ok() && !absl::IsResourceExhausted(status)) return status;
  recorded("working set", prefilled_);
  return prefilled_.load();
}

std::map<pid_t, std::shared_ptr<LazyTask>> LazyClone::TasksByPid() const {
  std::map<pid_t, std::shared_ptr<LazyTask>> by_pid;
  for (const std::shared_ptr<LazyTask>& task : Tasks()) by_pid.try_emplace(task->pid(), task);
  return by_pid;
}

absl::Status LazyClone::PutWorkingSet() {
  const auto tasks = TasksByPid();
  const std::shared_ptr<const LazyImage::Pieces> set = image_->working_set();
  std::vector<Piece> pieces;
  pieces.reserve(set->size());
  for (const LazyImage::Piece& piece : *set) {
    auto task = tasks.find(piece.pid);
    if (task == tasks.end()) continue;
    const auto pages = static_cast<uint32_t>(TakeRoom(piece.pages));
    if (pages > 0) pieces.push_back({task->second.get(), piece.run, piece.first, pages});
    if (pages < piece.pages) break;
  }
  return PutPieces(pieces, kFillThreads, &prefilled_);
}

absl::StatusOr<uint64_t> LazyClone::FillAll() {
  RK_RETURN_IF_ERROR(CheckRoomForAll());
  const uint64_t before = filled_;
  for (Stopwatch watch;;) {
    for (const std::shared_ptr<LazyTask>& task : Tasks()) {
      std::vector<Piece> pieces;
      for (size_t run = 0; run < task->pages().runs().size(); ++run) {
        pieces.push_back({task.get(), run, 0, task->pages().runs()[run].pages});
      }
      absl::Status status = PutPieces(pieces, kFillThreads, &filled_);
      if (!status.ok() && !absl::IsResourceExhausted(status)) Fail(status);
      RK_RETURN_IF_ERROR(status);
    }
    CompleteIfDone();
    // Of a crowded one, what forks just then was left out.
    if (!crowded_ || complete() || ended_ || watch.seconds() > kLongestFillOfCrowded) break;
    absl::SleepFor(kBetweenFills);
  }
  return filled_ - before;
}

bool LazyClone::FillSome() {
  std::shared_ptr<LazyTask> task;
  std::vector<Piece> pieces;
  {
    absl::MutexLock lock(&mutex_);
    if (!running_ || complete_ || ended_ || fill_paused_ || options_.fill == Fill::kNever) return false;
    // Until it is ready it is left alone: what it touches by itself is what counts, and it has the machine.
    if (options_.fill == Fill::kIdle && (recording_ || SteadyNow() < fill_from_)) return false;
    if (fill_task_ >= tasks_.size()) {
      // Not at once: what stood in the way may still be there.
      if (fill_again_.exchange(false)) fill_task_ = fill_next_ = 0;
      return false;
    }
    task = tasks_[fill_task_].task;
    size_t frames = 0;
    store::FrameId last;
    while (fill_next_ < task->pages().runs().size()) {
      const store::StoredRun& run = task->pages().runs()[fill_next_];
      if (!(run.frame == last) && ++frames > kFramesPerFill) break;
      last = run.frame;
      // Not again what came when something else was left out.
      if (task->AnyMissing(fill_next_)) pieces.push_back({task.get(), fill_next_, 0, run.pages});
      ++fill_next_;
    }
    if (fill_next_ >= task->pages().runs().size()) {
      ++fill_task_;
      fill_next_ = 0;
    }
  }
  if (!pieces.empty() && task->missing() > 0 && !task->Gone()) {
    absl::Status status = CheckRoomForAll();
    if (status.ok()) status = PutInBackground(pieces);
    if (absl::IsResourceExhausted(status)) {
      // It may do without: what it touches, it gets.
      absl::MutexLock lock(&mutex_);
      fill_paused_ = true;
      return false;
    }
    if (absl::IsAborted(status)) {
      fill_again_ = true;
      return false;
    }
    if (!status.ok()) {
      Fail(status);
      return false;
    }
  }
  if (crowded_) LetGoOfTasks();
  CompleteIfDone();
  return true;
}

}  // namespace rekindle::restore
