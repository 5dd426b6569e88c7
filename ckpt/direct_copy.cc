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
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "base/unix_socket.h"
#include "ckpt/pages_with_content.h"

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

uint64_t Bytes(const std::vector<AddressRange>& ranges) {
  uint64_t bytes = 0;
  for (const AddressRange& range : ranges) bytes += range.end - range.start;
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DirectCopy>> DirectCopy::Listen(const std::string& work_directory,
                                                               const criu::JobNamespaces& namespaces,
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
    if (!finishing_) continue;
    all_received_ = true;
    DropWhatWasNotLeft();
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
  if (range.ahead != 0) return CopyAhead(range);
  const auto task = static_cast<pid_t>(range.pid);
  const AddressRange left{range.start, range.end};
  RK_ASSIGN_OR_RETURN(const uint64_t begun, Begin(task, left));
  absl::MutexLock lock(&mutex_);
  bytes_ahead_ += Bytes(tasks_.at(task).left.Add(left)) - begun;
  return absl::OkStatus();
}

absl::Status DirectCopy::CopyAhead(const PageFilterRange& area) {
  const auto task = static_cast<pid_t>(area.pid);
  int pagemap = -1;
  {
    absl::MutexLock lock(&mutex_);
    RK_ASSIGN_OR_RETURN(Task* const met, Meet(task));
    if (!met->pagemap.valid()) {
      auto opened = OpenFile(absl::StrCat("/proc/", met->pid, "/pagemap"), O_RDONLY);
      // CRIU, which sees the same, comes to a verdict.
      if (!opened.ok()) return absl::OkStatus();
      met->pagemap = *std::move(opened);
    }
    pagemap = met->pagemap.get();
  }
  // The answer that CRIU will get for this area, as far as the page filter will leave its pages to us.
  for (const AddressRange& pages : PagesWithContent(pagemap, area.start, area.end)) {
    RK_RETURN_IF_ERROR(Begin(task, pages).status());
  }
  return absl::OkStatus();
}

// CRIU asks about the edges of small areas more than once, and about what was begun ahead.
absl::StatusOr<uint64_t> DirectCopy::Begin(pid_t task, const AddressRange& range) {
  pid_t pid = 0;
  std::vector<AddressRange> unheard;
  {
    absl::MutexLock lock(&mutex_);
    RK_ASSIGN_OR_RETURN(Task* const met, Meet(task));
    pid = met->pid;
    unheard = met->begun.Add(range);
  }
  for (const AddressRange& part : unheard) {
    // Without the lock: the other threads go on copying meanwhile.
    std::vector<AddressRange> unchanged;
    if (unchanged_) unchanged = unchanged_(task, pid, part);
    uint64_t at = part.start;
    for (const AddressRange& same : unchanged) {
      RK_RETURN_IF_ERROR(Schedule(task, pid, at, same.start));
      absl::MutexLock lock(&mutex_);
      tasks_.at(task).copied.push_back({same.start, {}, same.end - same.start});
      at = same.end;
    }
    RK_RETURN_IF_ERROR(Schedule(task, pid, at, part.end));
  }
  return Bytes(unheard);
}

absl::StatusOr<DirectCopy::Task*> DirectCopy::Meet(pid_t task) {
  auto known = tasks_.find(task);
  if (known != tasks_.end()) return &known->second;
  absl::StatusOr<pid_t> ours = namespaces_.Outside(task);
  unreadable_ |= !ours.ok();
  RK_RETURN_IF_ERROR(ours.status());
  Task& met = tasks_[task];
  met.pid = *ours;
  return &met;
}

absl::Status DirectCopy::Schedule(pid_t task, pid_t pid, uint64_t begin, uint64_t end) {
  for (uint64_t address = begin; address < end;) {
    // A block may be one on a disk, which takes its time.
    if (block_.empty()) {
      RK_ASSIGN_OR_RETURN(block_, arena_->NextBlock());
    }
    const uint64_t slice_end = std::min(end, (address / kSliceBytes + 1) * kSliceBytes);
    absl::Span<std::byte> to = block_.subspan(0, slice_end - address);
    block_.remove_prefix(to.size());
    absl::MutexLock lock(&mutex_);
    std::vector<CopiedRange>& copied = tasks_.at(task).copied;
    slices_.push_back({task, pid, address, to});
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

// Of what was begun ahead.
void DirectCopy::DropWhatWasNotLeft() {
  std::erase_if(slices_, [this](const Slice& slice) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return tasks_.at(slice.task).left.Within(slice.range()).empty();
  });
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
    if (!status.ok()) unread_.push_back({slice.task, slice.range(), std::move(status)});
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
  for (const Unread& unread : unread_) {
    if (!failure_.ok() || tasks_.at(unread.task).left.Within(unread.range).empty()) continue;
    unreadable_ = true;
    failure_ = unread.why;
  }
  return failure_;
}

void DirectCopy::Abandon(absl::Status why) { Fail(std::move(why)); }

absl::Status DirectCopy::status() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

uint64_t DirectCopy::bytes_ahead() const {
  absl::MutexLock lock(&mutex_);
  return bytes_ahead_;
}

bool DirectCopy::unreadable() const {
  absl::MutexLock lock(&mutex_);
  return unreadable_;
}

TaskRanges DirectCopy::Memory() const {
  absl::MutexLock lock(&mutex_);
  TaskRanges memory;
  // Neighbours are one: fewer to ask about.
  for (const auto& [number, task] : tasks_) {
    std::vector<AddressRange> left = task.left.Ranges();
    if (!left.empty()) memory[task.pid] = std::move(left);
  }
  return memory;
}

std::map<pid_t, std::vector<CopiedRange>> DirectCopy::Take() {
  absl::MutexLock lock(&mutex_);
  std::map<pid_t, std::vector<CopiedRange>> taken;
  for (const auto& [number, task] : tasks_) {
    if (task.left.Ranges().empty()) continue;
    std::vector<CopiedRange>& ranges = taken[number];
    for (const CopiedRange& copied : task.copied) {
      for (const AddressRange& part : task.left.Within({copied.address, copied.address + copied.size()})) {
        CopiedRange kept = copied;
        kept.RemoveFirst(part.start - copied.address);
        ranges.push_back(kept.First(part.end - part.start));
      }
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const CopiedRange& a, const CopiedRange& b) { return a.address < b.address; });
  }
  return taken;
}

}  // namespace rekindle::ckpt
