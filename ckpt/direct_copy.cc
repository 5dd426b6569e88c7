#include "ckpt/direct_copy.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "base/unix_socket.h"

namespace rekindle::ckpt {
namespace {

// What one thread copies at once: small enough that all have work to the end, and what one page table maps,
// whose lock the kernel takes for each page.
constexpr uint64_t kSliceBytes = 2u << 20;

// Memory that its own process may not read; slower.
bool ReadAnyway(pid_t pid, uint64_t address, absl::Span<std::byte> to) {
  const auto memory = OpenFile(absl::StrCat("/proc/", pid, "/mem"), O_RDONLY);
  if (!memory.ok()) return false;
  while (!to.empty()) {
    const ssize_t n = ::pread(memory->get(), to.data(), to.size(), static_cast<off_t>(address));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to.remove_prefix(static_cast<size_t>(n));
    address += static_cast<uint64_t>(n);
  }
  return true;
}

absl::Status CopyOut(pid_t pid, uint64_t address, absl::Span<std::byte> to) {
  while (!to.empty()) {
    iovec local{to.data(), to.size()};
    iovec remote{reinterpret_cast<void*>(address), to.size()};
    ssize_t n = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = n < 0 ? errno : EFAULT;
      if (error == EFAULT && ReadAnyway(pid, address, to)) return absl::OkStatus();
      return ErrnoStatus(error,
                         absl::StrCat("copying the memory of process ", pid, " at ", absl::Hex(address)));
    }
    to.remove_prefix(static_cast<size_t>(n));
    address += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DirectCopy>> DirectCopy::Listen(const std::string& work_directory,
                                                               const JobNamespaces& namespaces,
                                                               StagingArena* arena, size_t threads,
                                                               UnchangedMemory unchanged) {
  std::unique_ptr<DirectCopy> copy(new DirectCopy(namespaces, arena, std::move(unchanged)));
  RK_ASSIGN_OR_RETURN(copy->listener_, ListenAt(absl::StrCat(work_directory, "/", PAGE_FILTER_SOCKET)));
  copy->wake_.Reset(::eventfd(0, EFD_CLOEXEC));
  if (!copy->wake_.valid()) return ErrnoStatus(errno, "making an event descriptor");
  copy->threads_.emplace_back([c = copy.get()] { c->Receive(); });
  for (size_t i = 0; i < threads; ++i) copy->threads_.emplace_back([c = copy.get()] { c->Work(); });
  return copy;
}

DirectCopy::~DirectCopy() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
  for (std::thread& thread : threads_) thread.join();
}

void DirectCopy::Receive() {
  UniqueFd connection;
  for (;;) {
    // Edges of `wake_` are never lost: it is read only when what it stands for is acted upon.
    pollfd entries[2] = {{wake_.get(), POLLIN, 0},
                         {connection.valid() ? connection.get() : listener_.get(), POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return HangUp(ErrnoStatus(errno, "waiting for CRIU's list of memory"));
    }
    if (entries[1].revents != 0) {
      if (!connection.valid()) {
        connection.Reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!connection.valid() && errno != EINTR && errno != ECONNABORTED) {
          HangUp(ErrnoStatus(errno, "accepting CRIU's list of memory"));
        }
      } else if (!ReadRanges(connection.get())) {
        connection.Reset();
      }
      continue;  // as long as there is something to read, nothing else counts
    }
    if (entries[0].revents == 0) continue;
    eventfd_t value;
    ::eventfd_read(wake_.get(), &value);
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    // CRIU waits for us and has sent everything before: there is nothing more to come.
    if (finishing_) all_received_ = true;
  }
}

// Whoever has connected is turned away, and what CRIU left to us is lost: the dump fails, and the job goes
// on.
void DirectCopy::HangUp(absl::Status why) {
  listener_.Reset();
  Fail(std::move(why));
}

bool DirectCopy::ReadRanges(int connection) {
  PageFilterRange ranges[256];
  ssize_t n;
  do {
    n = ::recv(connection, ranges, sizeof ranges, 0);
  } while (n < 0 && errno == EINTR);
  if (n <= 0) return false;
  // The rest of a range that was cut is on its way.
  size_t bytes = static_cast<size_t>(n),
         whole = (bytes + sizeof ranges[0] - 1) / sizeof ranges[0] * sizeof ranges[0];
  if (whole != bytes) {
    if (::recv(connection, reinterpret_cast<char*>(ranges) + bytes, whole - bytes, MSG_WAITALL) !=
        static_cast<ssize_t>(whole - bytes)) {
      Fail(absl::DataLossError("CRIU's list of memory ends within an entry"));
      return false;
    }
  }
  for (size_t i = 0; i < whole / sizeof ranges[0]; ++i) {
    if (absl::Status status = Accept(ranges[i]); !status.ok()) Fail(std::move(status));
  }
  return true;
}

absl::Status DirectCopy::Accept(const PageFilterRange& range) {
  const auto task = static_cast<pid_t>(range.pid);
  pid_t pid = 0;
  std::vector<AddressRange> unheard;
  {
    absl::MutexLock lock(&mutex_);
    RK_ASSIGN_OR_RETURN(pid, Meet(task));
    unheard = Unheard(task, {range.start, range.end});
  }
  for (const AddressRange& part : unheard) {
    // Without the lock: the other threads go on copying meanwhile.
    std::vector<AddressRange> unchanged;
    if (unchanged_) unchanged = unchanged_(task, pid, part);
    absl::MutexLock lock(&mutex_);
    uint64_t at = part.start;
    for (const AddressRange& same : unchanged) {
      RK_RETURN_IF_ERROR(Schedule(task, at, same.start));
      copied_[task].push_back({same.start, {}, same.end - same.start});
      at = same.end;
    }
    RK_RETURN_IF_ERROR(Schedule(task, at, part.end));
  }
  return absl::OkStatus();
}

absl::StatusOr<pid_t> DirectCopy::Meet(pid_t task) {
  auto known = numbers_.find(task);
  if (known != numbers_.end()) return known->second;
  absl::StatusOr<pid_t> ours = namespaces_.Outside(task);
  unreadable_ |= !ours.ok();
  RK_RETURN_IF_ERROR(ours.status());
  copied_[task];
  numbers_[task] = *ours;
  return *ours;
}

// CRIU asks about the edges of small areas more than once.
std::vector<AddressRange> DirectCopy::Unheard(pid_t task, const AddressRange& range) {
  std::vector<AddressRange> unheard;
  std::map<uint64_t, uint64_t>& known = known_[task];
  uint64_t at = range.start;
  auto it = known.upper_bound(at);
  if (it != known.begin() && std::prev(it)->second > at) at = std::prev(it)->second;
  while (at < range.end) {
    uint64_t until = it == known.end() ? range.end : std::min(range.end, it->first);
    if (at < until) {
      unheard.push_back({at, until});
      known[at] = until;
    }
    if (it == known.end()) break;
    at = std::max(until, it->second);
    ++it;
  }
  return unheard;
}

absl::Status DirectCopy::Schedule(pid_t task, uint64_t begin, uint64_t end) {
  std::vector<CopiedRange>& copied = copied_[task];
  for (uint64_t address = begin; address < end;) {
    if (block_.empty()) {
      RK_ASSIGN_OR_RETURN(block_, arena_->NextBlock());
    }
    const uint64_t slice_end = std::min(end, (address / kSliceBytes + 1) * kSliceBytes);
    absl::Span<std::byte> to = block_.subspan(0, slice_end - address);
    block_.remove_prefix(to.size());
    slices_.push_back({numbers_.at(task), address, to});
    if (!copied.empty() && copied.back().address + copied.back().bytes.size() == address &&
        copied.back().bytes.data() + copied.back().bytes.size() == to.data()) {
      copied.back().bytes = {copied.back().bytes.data(), copied.back().bytes.size() + to.size()};
    } else {
      copied.push_back({address, to});
    }
    address += to.size();
  }
  return absl::OkStatus();
}

void DirectCopy::Work() {
  for (;;) {
    Slice slice;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &DirectCopy::HasWork));
      if (stopping_) return;
      slice = slices_.front();
      slices_.pop_front();
      ++copying_;
    }
    absl::Status status = CopyOut(slice.pid, slice.address, slice.to);
    bytes_copied_.fetch_add(slice.to.size(), std::memory_order_relaxed);
    absl::MutexLock lock(&mutex_);
    --copying_;
    if (status.ok()) continue;
    unreadable_ = true;
    if (failure_.ok()) failure_ = std::move(status);
  }
}

void DirectCopy::Fail(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) failure_ = std::move(status);
}

absl::Status DirectCopy::Finish() {
  {
    absl::MutexLock lock(&mutex_);
    finishing_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &DirectCopy::Finished));
  return failure_;
}

void DirectCopy::Abandon(absl::Status why) { Fail(std::move(why)); }

absl::Status DirectCopy::status() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

bool DirectCopy::unreadable() const {
  absl::MutexLock lock(&mutex_);
  return unreadable_;
}

TaskRanges DirectCopy::Memory() const {
  absl::MutexLock lock(&mutex_);
  TaskRanges memory;
  for (const auto& [task, known] : known_) {
    std::vector<AddressRange>& ranges = memory[numbers_.at(task)];
    for (const auto& [start, end] : known) {
      // Neighbours become one: fewer to ask about.
      if (!ranges.empty() && ranges.back().end == start) {
        ranges.back().end = end;
      } else {
        ranges.push_back({start, end});
      }
    }
  }
  return memory;
}

std::map<pid_t, std::vector<CopiedRange>> DirectCopy::Take() {
  absl::MutexLock lock(&mutex_);
  for (auto& [pid, ranges] : copied_) {
    std::sort(ranges.begin(), ranges.end(),
              [](const CopiedRange& a, const CopiedRange& b) { return a.address < b.address; });
  }
  return std::move(copied_);
}

}  // namespace rekindle::ckpt
