#include "restore/sandbox_pool.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/packet_socket.h"
#include "base/parallel.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "base/unix_socket.h"
#include "criu/command_line.h"
#include "criu/lazy_pages.h"
#include "restore/sandbox_protocol.h"

namespace rekindle::restore {
namespace {

constexpr absl::Duration kBeforeFirstRefill = absl::Milliseconds(200);

// When memory is short the kernel may kill what nobody uses yet.
bool Lives(const ReadySandbox& ready) {
  pollfd ends[] = {{ready.sandbox.init_pidfd(), POLLIN, 0}, {ready.criu.pidfd.get(), POLLIN, 0}};
  return ::poll(ends, 2, 0) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SandboxPool>> SandboxPool::Start(const std::string& directory,
                                                                const criu::Installation& criu, size_t size) {
  std::unique_ptr<SandboxPool> pool(new SandboxPool(directory, criu, size));
  RK_ASSIGN_OR_RETURN(pool->factory_, SandboxFactory::Start(directory, criu.command));
  RK_ASSIGN_OR_RETURN(pool->null_, OpenFile("/dev/null", O_RDWR));
  if (size > 0) {
    RK_RETURN_IF_ERROR(CatchNoMoreThreads([&] {
      pool->thread_ = std::thread([raw = pool.get()] { raw->Refill(); });
      return absl::OkStatus();
    }));
  }
  return pool;
}

SandboxPool::~SandboxPool() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<ReadySandbox> SandboxPool::MakeWith(const SandboxKind& kind,
                                                   const std::vector<std::pair<int, int>>& descriptors) {
  ReadySandbox made;
  std::vector<int> groups;
  if (kind.grouped) {
    RK_ASSIGN_OR_RETURN(made.group, Cgroup::Make());
    groups = made.group->processes();
  }
  RK_ASSIGN_OR_RETURN(made.sandbox, factory_->Make(kind.network));
  RK_ASSIGN_OR_RETURN(made.listener,
                      ListenAt(absl::StrCat(made.sandbox.directory(), "/", criu::kLazyPagesSocket)));
  RK_ASSIGN_OR_RETURN(auto channel, PacketSocketPair());
  made.channel = std::move(channel.first);
  std::vector<std::pair<int, int>> all;
  for (int i = 0; i < kChannelsInCriu; ++i) all.emplace_back(channel.second.get(), kChannelInCriu + i);
  for (int i = 0; i < kNullsInCriu; ++i) all.emplace_back(null_.get(), kNullInCriu + i);
  all.insert(all.end(), descriptors.begin(), descriptors.end());
  RK_ASSIGN_OR_RETURN(
      made.criu,
      made.sandbox.StartCriu(criu::FullCommand(criu_, criu::SwrkArguments(kSocketInCriu)), all, groups));
  return made;
}

absl::StatusOr<ReadySandbox> SandboxPool::Take(const SandboxKind& kind) {
  std::vector<ReadySandbox> dead;  // not destroyed under the lock
  {
    absl::MutexLock lock(&mutex_);
    asked_for_.insert(kind);
    std::deque<ReadySandbox>& ready = ready_[kind];
    failing_ = false;
    while (!ready.empty()) {
      ReadySandbox taken = std::move(ready.front());
      ready.pop_front();
      if (Lives(taken)) return taken;
      dead.push_back(std::move(taken));
    }
  }
  if (!dead.empty()) {
    Log(LogLevel::kWarning, absl::StrCat(dead.size(),
                                         " of the sandboxes that were made ahead of time had "
                                         "ended: something has killed them, or their CRIU"));
  }
  return MakeWith(kind, {});
}

absl::Status SandboxPool::Expect(const SandboxKind& kind) {
  {
    absl::MutexLock lock(&mutex_);
    if (size_ == 0 || !ready_[kind].empty()) return absl::OkStatus();
  }
  RK_ASSIGN_OR_RETURN(ReadySandbox made, MakeWith(kind, {}));
  made.made_ahead = true;
  absl::MutexLock lock(&mutex_);
  ready_[kind].push_back(std::move(made));
  return absl::OkStatus();
}

const SandboxKind* SandboxPool::Lacking() const {
  for (const SandboxKind& kind : asked_for_) {
    auto ready = ready_.find(kind);
    if (ready == ready_.end() || ready->second.size() < size_) return &kind;
  }
  return nullptr;
}

bool SandboxPool::HasWork() const { return stop_ || (!failing_ && Lacking() != nullptr); }

void SandboxPool::Refill() {
  {
    // The first one that anybody asked for is being used now, and nothing is in memory yet: what is made
    // ahead would only hold it up.
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &SandboxPool::HasWork));
    AwaitUntil(mutex_, absl::Condition(this, &SandboxPool::Stopped), Deadline(kBeforeFirstRefill));
  }
  for (;;) {
    SandboxKind kind;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &SandboxPool::HasWork));
      if (stop_) return;
      kind = *Lacking();
    }
    absl::StatusOr<ReadySandbox> made = MakeWith(kind, {});
    absl::MutexLock lock(&mutex_);
    if (made.ok()) {
      made->made_ahead = true;
      ready_[kind].push_back(*std::move(made));
    } else {
      // Whoever asks next tries again, and is told why.
      failing_ = true;
      Log(LogLevel::kWarning, absl::StrCat("making a sandbox ahead of time: ", made.status().message()));
    }
  }
}

}  // namespace rekindle::restore
