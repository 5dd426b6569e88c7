#include "restore/kept_pager.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/file.h"
#include "base/opened_files.h"
#include "base/process_stat.h"
#include "base/test_eventually.h"
#include "dedup_store/store.h"
#include "restore/pager_protocol.h"

namespace rekindle::restore {
namespace {

class KeptPagerTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(folder_.ok()) << folder_.status();
    for (const char* name : {"one", "other"}) {
      store::StoreOptions options;
      options.path = Path(name);
      const auto store = store::Store::Open(options);
      ASSERT_TRUE(store.ok()) << store.status();
    }
  }

  // Pagers end by themselves once nobody is connected, but not at once.
  void TearDown() override {
    for (const pid_t pid : ProcessTree(::getpid())) {
      if (pid != ::getpid()) ::kill(pid, SIGKILL);
    }
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_->path(), "/", name); }
  std::string Lock() const { return Path(kPagerLock); }

  // How many descriptors of ours lead to the lock of who starts a pager.
  long LockOpened() const {
    const auto descriptors = ForeignDescriptorsOf(::getpid());
    if (!descriptors.ok()) return 0;
    return std::count_if(descriptors->begin(), descriptors->end(), [&](const ForeignDescriptor& descriptor) {
      return ReadLink(descriptor.link()).value_or("") == Lock();
    });
  }

  static constexpr uint64_t kCacheBytes = uint64_t{16} << 20;
  absl::StatusOr<TemporaryDirectory> folder_ = TemporaryDirectory::Make("/tmp", "rekindle_kept_pager_test.");
};

TEST_F(KeptPagerTest, ItIsStartedOnceAndStays) {
  KeptPager pager(folder_->path(), kCacheBytes);
  const PagerPlace place = pager.PlaceFor(Path("one"));
  EXPECT_TRUE(absl::IsNotFound(PagerClient::ConnectToRunning(place).status()));
  for (int i = 0; i < 3; ++i) {
    auto client = pager.Connect(place);
    ASSERT_TRUE(client.ok()) << client.status();
    const auto numbers = client->Stats();
    ASSERT_TRUE(numbers.ok()) << numbers.status();
    EXPECT_EQ(numbers->cache.budget_bytes, kCacheBytes);
  }
  EXPECT_EQ(PagerClient::ConnectToAllRunning(place).value().size(), 1u);
}

TEST_F(KeptPagerTest, OneThatRunsGetsTheSizeOfCacheThatIsAskedFor) {
  KeptPager first(folder_->path(), kCacheBytes);
  ASSERT_TRUE(first.Connect(first.PlaceFor(Path("one"))).ok());
  KeptPager second(folder_->path(), 2 * kCacheBytes);
  auto client = second.Connect(second.PlaceFor(Path("one")));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(client->Stats().value().cache.budget_bytes, 2 * kCacheBytes);
}

TEST_F(KeptPagerTest, WhereItHasEndedTheOneThatSomebodyElseHasStartedIsKept) {
  KeptPager pager(folder_->path(), kCacheBytes);
  const PagerPlace place = pager.PlaceFor(Path("one"));
  ASSERT_TRUE(pager.Connect(place).ok());
  for (const pid_t pid : ProcessTree(::getpid())) {
    if (pid != ::getpid()) ::kill(pid, SIGKILL);
  }
  EXPECT_TRUE(Eventually([&] { return ProcessTree(::getpid()).size() == 1; })) << "and is collected";
  KeptPager other(folder_->path(), 2 * kCacheBytes);
  ASSERT_TRUE(other.Connect(other.PlaceFor(Path("one"))).ok());
  auto client = pager.Connect(place);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(client->Stats().value().cache.budget_bytes, kCacheBytes);
}

TEST_F(KeptPagerTest, WhoFindsOneDoesNotWaitForWhoBringsUpAnother) {
  KeptPager pager(folder_->path(), kCacheBytes);
  ASSERT_TRUE(pager.Connect(pager.PlaceFor(Path("one"))).ok());
  absl::StatusOr<UniqueFd> lock = LockFile(Lock(), LOCK_EX);
  ASSERT_TRUE(lock.ok()) << lock.status();
  std::thread starter([&] {
    const auto other = pager.Connect(pager.PlaceFor(Path("other")));
    EXPECT_TRUE(other.ok()) << other.status();
  });
  EXPECT_TRUE(Eventually([&] { return LockOpened() >= 2; })) << "another is brought up";
  absl::Notification found;
  std::thread finder([&] {
    const auto client = pager.Connect(pager.PlaceFor(Path("one")));
    EXPECT_TRUE(client.ok()) << client.status();
    found.Notify();
  });
  EXPECT_TRUE(found.WaitForNotificationWithTimeout(absl::Seconds(60)));
  lock->Reset();
  starter.join();
  finder.join();
}

}  // namespace
}  // namespace rekindle::restore
