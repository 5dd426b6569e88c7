#include "restore/lazy_task.h"

#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/timeline.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;

// Any that the kernel accepts.
constexpr uint64_t kProbedAddress = uint64_t{1} << 30;
constexpr int kYields = 64;
constexpr int64_t kStarvedAtLeastEachNs = 1'000'000'000;  // far more than between two tries

}  // namespace

LazyTask::LazyTask(pid_t pid, UniqueFd userfaultfd, std::shared_ptr<const TaskPages> pages)
    : pid_(pid), userfaultfd_(std::move(userfaultfd)), pages_(std::move(pages)), missing_(pages_) {
  ++count_;
}

LazyTask::LazyTask(const LazyTask& parent, UniqueFd userfaultfd)
    : pid_(parent.pid_),
      userfaultfd_(std::move(userfaultfd)),
      pages_(parent.pages_),
      forked_(true),
      missing_(parent.missing_) {
  ++count_;
}

uint64_t LazyTask::missing() const {
  absl::ReaderMutexLock lock(&mutex_);
  return missing_.missing();
}

bool LazyTask::AnyMissing(size_t run) const {
  absl::ReaderMutexLock lock(&mutex_);
  const uint64_t first = pages_->FirstNumberOf(run), end = first + pages_->runs()[run].pages;
  for (uint64_t number = first; number < end; ++number) {
    if (missing_.Missing(number)) return true;
  }
  return false;
}

absl::StatusOr<LazyTask::Events> LazyTask::ReadEvents() {
  Events events;
  absl::WriterMutexLock lock(&mutex_);
  if (fork_waits_ && !ChangeWaits()) fork_waits_ = changed_since_ = false;
  // Nothing can be put in while a fork waits, and each try in vain puts it behind what has come since.
  if (fork_waits_ && !MayOpenAnother() && !Gone()) {
    NoteStarved();
    return events;
  }
  // One at a time: behind others in one read, a fork that found no descriptor would not be told of.
  uffd_msg message;
  for (;;) {
    const ssize_t n = ::read(userfaultfd_.get(), &message, sizeof message);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      starved_since_ns_ = 0;
      fork_waits_ = changed_since_ = false;
      return events;
    }
    if (n < 0 && (errno == EMFILE || errno == ENFILE)) {
      fork_waits_ = true;
      NoteStarved();
      return events;
    }
    if (n != sizeof message)
      return ErrnoStatus(n < 0 ? errno : EIO, absl::StrFormat("serving the memory of process %d", pid_));
    switch (message.event) {
      case UFFD_EVENT_PAGEFAULT:
        events.faults.push_back(message.arg.pagefault.address / kPageSize * kPageSize);
        break;
      case UFFD_EVENT_FORK: {
        starved_since_ns_ = 0;
        UniqueFd child(static_cast<int>(message.arg.fork.ufd));
        if (changed_since_) {
          events.lost_children.push_back(std::move(child));
        } else {
          events.children.push_back(std::unique_ptr<LazyTask>(new LazyTask(*this, std::move(child))));
        }
        // It runs again and may fork as fast as this reads.
        return events;
      }
      case UFFD_EVENT_REMAP: {
        const auto& [from, to, bytes] = message.arg.remap;
        NoteChange(from, from + bytes);
        NoteChange(to, to + bytes);
        missing_.Move(from, to, bytes);
        break;
      }
      case UFFD_EVENT_REMOVE:
      case UFFD_EVENT_UNMAP:
        NoteChange(message.arg.remove.start, message.arg.remove.end);
        missing_.Drop(message.arg.remove.start, message.arg.remove.end);
        break;
      default:
        return absl::UnimplementedError(
            absl::StrFormat("the memory of process %d: the kernel tells of an unknown event %d", pid_,
                            static_cast<int>(message.event)));
    }
  }
}

bool LazyTask::ChangeWaits() const {
  // What waits is looked at before the range, of which there is none.
  uffdio_continue nothing{};
  return ::ioctl(userfaultfd_.get(), UFFDIO_CONTINUE, &nothing) != 0 && errno == EAGAIN;
}

bool LazyTask::MayOpenAnother() { return UniqueFd(::eventfd(0, EFD_CLOEXEC)).valid(); }

void LazyTask::NoteStarved() {
  const int64_t now = MonotonicNanos();
  const bool begins = starved() == absl::ZeroDuration();
  // In this order: others look without the lock.
  if (begins) starved_since_ns_ = 0;
  starved_at_ns_ = now;
  if (begins) starved_since_ns_ = now;
}

void LazyTask::NoteChange(uint64_t begin, uint64_t end) {
  changed_since_ = changed_since_ || (fork_waits_ && missing_.AnyMissing(begin, end));
}

absl::Duration LazyTask::starved() const {
  const int64_t since = starved_since_ns_, now = MonotonicNanos();
  // Who forked may have been killed, of which nothing tells.
  if (since == 0 || now - starved_at_ns_ > kStarvedAtLeastEachNs) return absl::ZeroDuration();
  return absl::Nanoseconds(now - since + 1);
}

LazyTask::Wanted LazyTask::WhatBelongsAt(uint64_t address) const {
  absl::ReaderMutexLock lock(&mutex_);
  std::optional<uint64_t> number = missing_.NumberAt(address);
  if (!number || !missing_.Missing(*number)) return {};
  const size_t run = pages_->RunOfNumber(*number);
  return {true, run, static_cast<uint32_t>(*number - pages_->FirstNumberOf(run))};
}

absl::StatusOr<LazyTask::Outcome> LazyTask::Put(uint64_t number, uint64_t pages, const std::byte* bytes) {
  absl::ReaderMutexLock lock(&mutex_);
  const uint64_t begin = number, end = number + pages;
  Range range;  // found, and not yet put in
  auto put = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) -> absl::StatusOr<Outcome> {
    if (range.pages == 0) return Outcome::kDone;
    return CopyRange(range, bytes + (range.number - begin) * kPageSize);
  };
  for (size_t run = pages_->RunOfNumber(begin); number < end; ++run) {
    const uint64_t first_of_run = pages_->FirstNumberOf(run);
    const uint64_t end_of_run = std::min(end, first_of_run + pages_->runs()[run].pages);
    for (const MissingPages::Place& place : missing_.PlacesOf(run)) {
      const uint64_t first_of_place = first_of_run + place.first;
      const uint64_t until = std::min(end_of_run, first_of_place + place.pages);
      for (uint64_t at = std::max(number, first_of_place); at < until; ++at) {
        if (!missing_.Missing(at)) continue;
        const uint64_t address = place.address + (at - first_of_place) * kPageSize;
        if (at == range.number + range.pages && address == range.address + range.pages * kPageSize) {
          ++range.pages;
          continue;
        }
        RK_ASSIGN_OR_RETURN(Outcome outcome, put());
        if (outcome != Outcome::kDone) return outcome;
        range = {address, at, 1};
      }
    }
    number = end_of_run;
  }
  return put();
}

absl::StatusOr<LazyTask::Outcome> LazyTask::CopyRange(Range range, const std::byte* bytes) {
  uint64_t most = range.pages;  // at once: a copy must not cross the border of two areas
  while (range.pages > 0) {
    const uint64_t now = std::min(range.pages, most);
    uffdio_copy copy{};
    copy.dst = range.address;
    copy.src = reinterpret_cast<uintptr_t>(bytes);
    copy.len = now * kPageSize;
    uint64_t done = now;
    if (::ioctl(userfaultfd_.get(), UFFDIO_COPY, &copy) != 0) {
      const int error = copy.copy < 0 ? static_cast<int>(-copy.copy) : errno;
      if (copy.copy > 0) {
        done = static_cast<uint64_t>(copy.copy) / kPageSize;
      } else if (error == EEXIST) {
        // Somebody was faster: whoever waits is woken by them, or here.
        uffdio_range there{range.address, kPageSize};
        ::ioctl(userfaultfd_.get(), UFFDIO_WAKE, &there);
        done = 1;
      } else if (error == EAGAIN) {
        return Outcome::kChanging;
      } else if (error == ESRCH || error == ENOSPC) {
        return Outcome::kGone;
      } else if (error == ENOMEM) {
        return Outcome::kNoMemory;
      } else if ((error == ENOENT || error == EINVAL) && now > 1) {
        most = now / 2;
        continue;
      } else if (error == ENOENT && forked_) {
        // MADV_DONTFORK: the child never had this memory.
        done = 1;
      } else {
        return absl::FailedPreconditionError(
            absl::StrFormat("process %d: the kernel does not take the page at %#x: %s", pid_, range.address,
                            absl::Status(ErrnoStatus(error, "userfaultfd")).message()));
      }
    }
    for (uint64_t i = 0; i < done; ++i) missing_.Take(range.number + i);
    range = {range.address + done * kPageSize, range.number + done, range.pages - done};
    bytes += done * kPageSize;
  }
  return Outcome::kDone;
}

absl::StatusOr<LazyTask::Outcome> LazyTask::PutZero(uint64_t address) {
  absl::ReaderMutexLock lock(&mutex_);
  if (std::optional<uint64_t> number = missing_.NumberAt(address); number && missing_.Missing(*number)) {
    return Outcome::kChanging;
  }
  uffdio_zeropage zero{};
  zero.range = {address, kPageSize};
  if (::ioctl(userfaultfd_.get(), UFFDIO_ZEROPAGE, &zero) == 0) return Outcome::kDone;
  const int error = zero.zeropage < 0 ? static_cast<int>(-zero.zeropage) : errno;
  switch (error) {
    case EEXIST: {
      uffdio_range range{address, kPageSize};
      ::ioctl(userfaultfd_.get(), UFFDIO_WAKE, &range);
      return Outcome::kDone;
    }
    case EAGAIN:
      return Outcome::kChanging;
    case ENOENT:  // the memory has gone meanwhile, and who waited for it
      return Outcome::kDone;
    case ESRCH:
    case ENOSPC:
      return Outcome::kGone;
    case ENOMEM:
      return Outcome::kNoMemory;
    default:
      return ErrnoStatus(error, absl::StrFormat("giving process %d a page of zeros at %#x", pid_, address));
  }
}

bool LazyTask::NobodyHasMemoryBehind(int userfaultfd) {
  // Lifts a protection that nothing has; all that matters is whether the kernel still finds the memory.
  uffdio_writeprotect nothing{};
  nothing.range = {kProbedAddress, kPageSize};
  nothing.mode = UFFDIO_WRITEPROTECT_MODE_DONTWAKE;
  return ::ioctl(userfaultfd, UFFDIO_WRITEPROTECT, &nothing) != 0 && errno == ESRCH;
}

LazyTask::Memory LazyTask::Probe(uint64_t begin, uint64_t end) const {
  // Refused for private memory, in any case, but only once the kernel has found the memory.
  uffdio_continue nothing{};
  nothing.range = {begin, end - begin};
  nothing.mode = UFFDIO_CONTINUE_MODE_DONTWAKE;
  if (::ioctl(userfaultfd_.get(), UFFDIO_CONTINUE, &nothing) == 0) return Memory::kUnknown;
  return errno == EINVAL ? Memory::kThere : errno == ENOENT ? Memory::kNotThere : Memory::kUnknown;
}

void LazyTask::DropUnforked() {
  absl::WriterMutexLock lock(&mutex_);
  if (missing_.missing() == 0) return;
  std::vector<AddressRange> ranges = missing_.Ranges();
  while (!ranges.empty()) {
    const AddressRange range = ranges.back();
    ranges.pop_back();
    if (!missing_.AnyMissing(range.begin, range.end)) continue;
    const Memory memory = Probe(range.begin, range.end);
    // It has begun to change its memory, which its events tell; or it has gone.
    if (memory == Memory::kUnknown) return;
    if (memory == Memory::kThere) continue;
    if (range.end - range.begin == kPageSize) {
      missing_.Drop(range.begin, range.end);
      continue;
    }
    // A part of it is not there, or the task has made several areas of it.
    const uint64_t middle = range.begin + (range.end - range.begin) / kPageSize / 2 * kPageSize;
    ranges.push_back({range.begin, middle});
    ranges.push_back({middle, range.end});
  }
}

void LazyTask::WaitForChange(int attempt) const {
  if (attempt < kYields) {
    std::this_thread::yield();
    return;
  }
  pollfd entry{userfaultfd_.get(), POLLIN, 0};
  ::poll(&entry, 1, 1);
}

}  // namespace rekindle::restore
