#include "restore/lazy_task.h"

#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;

constexpr size_t kEventsAtOnce = 64;
// Any that the kernel accepts.
constexpr uint64_t kProbedAddress = uint64_t{1} << 30;
constexpr int kYields = 64;

}  // namespace

LazyTask::LazyTask(pid_t pid, UniqueFd userfaultfd, std::shared_ptr<const TaskPages> pages)
    : pid_(pid), userfaultfd_(std::move(userfaultfd)), pages_(std::move(pages)), missing_(pages_) {}

LazyTask::LazyTask(const LazyTask& parent, UniqueFd userfaultfd)
    : pid_(parent.pid_),
      userfaultfd_(std::move(userfaultfd)),
      pages_(parent.pages_),
      forked_(true),
      missing_(parent.missing_) {}

uint64_t LazyTask::missing() const {
  absl::ReaderMutexLock lock(&mutex_);
  return missing_.missing();
}

absl::StatusOr<LazyTask::Events> LazyTask::ReadEvents() {
  Events events;
  absl::WriterMutexLock lock(&mutex_);
  uffd_msg messages[kEventsAtOnce];
  for (;;) {
    const ssize_t n = ::read(userfaultfd_.get(), messages, sizeof messages);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return events;
    if (n <= 0)
      return ErrnoStatus(n < 0 ? errno : EIO, absl::StrFormat("serving the memory of process %d", pid_));
    for (size_t i = 0; i < static_cast<size_t>(n) / sizeof messages[0]; ++i) {
      const uffd_msg& message = messages[i];
      switch (message.event) {
        case UFFD_EVENT_PAGEFAULT:
          events.faults.push_back(message.arg.pagefault.address / kPageSize * kPageSize);
          break;
        case UFFD_EVENT_FORK:
          events.children.push_back(std::unique_ptr<LazyTask>(
              new LazyTask(*this, UniqueFd(static_cast<int>(message.arg.fork.ufd)))));
          break;
        case UFFD_EVENT_REMAP:
          missing_.Move(message.arg.remap.from, message.arg.remap.to, message.arg.remap.len);
          break;
        case UFFD_EVENT_REMOVE:
        case UFFD_EVENT_UNMAP:
          missing_.Drop(message.arg.remove.start, message.arg.remove.end);
          break;
        default:
          return absl::UnimplementedError(
              absl::StrFormat("the memory of process %d: the kernel tells of an unknown event %d", pid_,
                              static_cast<int>(message.event)));
      }
    }
  }
}

LazyTask::Wanted LazyTask::WhatBelongsAt(uint64_t address) const {
  absl::ReaderMutexLock lock(&mutex_);
  std::optional<uint64_t> number = missing_.NumberAt(address);
  if (!number || !missing_.Missing(*number)) return {};
  const size_t run = pages_->RunOfNumber(*number);
  return {true, run, static_cast<uint32_t>(*number - pages_->FirstNumberOf(run))};
}

absl::StatusOr<LazyTask::Outcome> LazyTask::Put(size_t run, uint32_t first, uint32_t pages,
                                                absl::Span<const std::byte> frame) {
  absl::ReaderMutexLock lock(&mutex_);
  const store::StoredRun& stored = pages_->runs()[run];
  const std::byte* bytes = frame.data() + size_t{stored.page_in_frame} * kPageSize;
  const uint32_t end = first + pages;
  for (const MissingPages::Place& place : missing_.PlacesOf(run)) {
    uint32_t at = std::max(first, place.first);
    const uint32_t until = std::min(end, place.first + place.pages);
    while (at < until) {
      const uint64_t number = pages_->FirstNumberOf(run) + at;
      uint32_t count = 0;
      while (at + count < until && missing_.Missing(number + count)) ++count;
      if (count == 0) {
        ++at;
        continue;
      }
      RK_ASSIGN_OR_RETURN(Outcome outcome, CopyRange(place.address + uint64_t{at - place.first} * kPageSize,
                                                     bytes + size_t{at} * kPageSize, number, count));
      if (outcome != Outcome::kDone) return outcome;
      at += count;
    }
  }
  return Outcome::kDone;
}

absl::StatusOr<LazyTask::Outcome> LazyTask::CopyRange(uint64_t address, const std::byte* bytes,
                                                      uint64_t first_number, uint32_t pages) {
  uint32_t most = pages;  // at once: a copy must not cross the border of two areas
  while (pages > 0) {
    const uint32_t now = std::min(pages, most);
    uffdio_copy copy{};
    copy.dst = address;
    copy.src = reinterpret_cast<uintptr_t>(bytes);
    copy.len = uint64_t{now} * kPageSize;
    uint32_t done = now;
    if (::ioctl(userfaultfd_.get(), UFFDIO_COPY, &copy) != 0) {
      const int error = copy.copy < 0 ? static_cast<int>(-copy.copy) : errno;
      if (copy.copy > 0) {
        done = static_cast<uint32_t>(static_cast<uint64_t>(copy.copy) / kPageSize);
      } else if (error == EEXIST) {
        // Somebody was faster: whoever waits is woken by them, or here.
        uffdio_range range{address, kPageSize};
        ::ioctl(userfaultfd_.get(), UFFDIO_WAKE, &range);
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
            absl::StrFormat("process %d: the kernel does not take the page at %#x: %s", pid_, address,
                            absl::Status(ErrnoStatus(error, "userfaultfd")).message()));
      }
    }
    for (uint32_t i = 0; i < done; ++i) missing_.Take(first_number + i);
    address += uint64_t{done} * kPageSize;
    bytes += size_t{done} * kPageSize;
    first_number += done;
    pages -= done;
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

bool LazyTask::Gone() const {
  // Lifts a protection that nothing has; all that matters is whether the kernel still finds the memory.
  uffdio_writeprotect nothing{};
  nothing.range = {kProbedAddress, kPageSize};
  nothing.mode = UFFDIO_WRITEPROTECT_MODE_DONTWAKE;
  return ::ioctl(userfaultfd_.get(), UFFDIO_WRITEPROTECT, &nothing) != 0 && errno == ESRCH;
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
