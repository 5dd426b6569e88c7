// Several processes on one store, and processes that are killed; full and read-only file systems. No test
// here may have threads when it forks.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/time.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

class StoreProcessTest : public StoreTest {};

TestImage NumberedImage(uint64_t number) {
  TestImage image;
  image.objects["common"][0] = MakePages(100, 1);
  image.objects["own"][0] = MakePages(30, 10 + number) + MakePages(30, 20 + number, Content::kText);
  image.blobs["number"] = absl::StrCat(number);
  return image;
}

TEST_F(StoreProcessTest, TwoProcessesWriteAtOnce) {
  auto writer = [this](int first) {
    return StartChild([this, first]() -> std::string {
      auto store = Store::Open(options_);
      if (!store.ok()) return store.status().ToString();
      for (int i = first; i < first + 6; ++i) {
        auto info = NumberedImage(i).Commit(**store, absl::StrCat("image:", i));
        if (!info.ok()) return info.status().ToString();
        auto gc = (*store)->Gc({});
        if (!gc.ok()) return gc.status().ToString();
      }
      return "";
    });
  };
  // The store itself is made by both at the same time, too.
  pid_t a = writer(0), b = writer(100);
  EXPECT_EQ(WaitForChild(a), 0);
  EXPECT_EQ(WaitForChild(b), 0);
  Reopen();
  for (int i : {0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105}) {
    NumberedImage(i).ExpectIn(*store_, absl::StrCat("image:", i));
  }
  EXPECT_EQ(store_->List()->size(), 12u);
  ExpectWhole();
}

TEST_F(StoreProcessTest, SurvivesKilledWriters) {
  Reopen();
  RK_ASSERT_OK(NumberedImage(0).Commit(*store_, "kept"));
  store_.reset();
  for (int round = 0; round < 15; ++round) {
    SCOPED_TRACE(round);
    pid_t pid = StartChild([this, round]() -> std::string {
      // The process kills itself at a moment that differs from round to round.
      struct itimerval timer = {};
      timer.it_value.tv_usec = 1000 + round * 1500;
      signal(SIGALRM, [](int) { kill(getpid(), SIGKILL); });
      setitimer(ITIMER_REAL, &timer, nullptr);
      auto store = Store::Open(options_);
      if (!store.ok()) return store.status().ToString();
      for (int i = 0;; ++i) {
        auto info = NumberedImage(1000 + i).Commit(**store, "changing", "kept", true);
        if (!info.ok()) return info.status().ToString();
        auto gc = (*store)->Gc({});
        if (!gc.ok()) return gc.status().ToString();
      }
    });
    int status = WaitForChild(pid);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    Reopen();
    NumberedImage(0).ExpectIn(*store_, "kept");
    ExpectWhole();
    if (store_->Find("changing").ok()) {
      auto reader = store_->OpenImage("changing");
      RK_ASSERT_OK(reader);
      auto number = (*reader)->ReadBlob("number");
      RK_ASSERT_OK(number);
      NumberedImage(std::stoull(*number)).ExpectIn(*store_, "changing");
    }
    // The kernel ends a dead process's io_uring in its own time; until then the pack it was writing stays
    // locked.
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    auto leftovers = [&] { return ListDirectory(options_.path + "/packs")->size() - store_->Stats()->packs; };
    do {
      RK_ASSERT_OK(store_->Gc({}));
    } while (leftovers() != 0 && absl::Now() < deadline);
    EXPECT_EQ(leftovers(), 0u);
    store_.reset();
  }
}

TEST_F(StoreProcessTest, GcOfAnotherProcessLeavesAReaderAlone) {
  Reopen();
  RK_ASSERT_OK(NumberedImage(7).Commit(*store_, "seven"));
  store_.reset();
  int to_child[2], to_parent[2];
  ASSERT_EQ(pipe2(to_child, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(to_parent, O_CLOEXEC), 0);
  pid_t pid = StartChild([&]() -> std::string {
    auto store = Store::Open(options_);
    if (!store.ok()) return store.status().ToString();
    auto reader = (*store)->OpenImage("seven");
    if (!reader.ok()) return reader.status().ToString();
    char c = 'r';
    if (write(to_parent[1], &c, 1) != 1 || read(to_child[0], &c, 1) != 1) return "pipe";
    std::string pages(100 * kPageSize, '\0');
    auto status =
        (*reader)->ReadPages("common", 0, {reinterpret_cast<std::byte*>(pages.data()), pages.size()});
    if (!status.ok()) return status.ToString();
    return pages == MakePages(100, 1) ? "" : "wrong bytes";
  });
  char c;
  ASSERT_EQ(read(to_parent[0], &c, 1), 1);
  Reopen();
  RK_ASSERT_OK(store_->Remove("seven"));
  auto busy = store_->Gc({});
  RK_ASSERT_OK(busy);
  EXPECT_EQ(busy->packs_removed, 0u);
  ASSERT_EQ(write(to_child[1], &c, 1), 1);
  EXPECT_EQ(WaitForChild(pid), 0);
  EXPECT_EQ(store_->Gc({})->packs_removed, 1u);
  for (int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(fd);
}

// Mounts a tmpfs of `bytes` on `path`, visible to this process alone.
std::string MountPrivately(const std::string& path, const std::string& options) {
  if (unshare(CLONE_NEWNS) != 0) return absl::StrCat("unshare: ", strerror(errno));
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return "private mounts";
  if (mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()) != 0)
    return absl::StrCat("mount: ", strerror(errno));
  return "";
}

TEST_F(StoreProcessTest, AFullDiskFailsTheNewImageAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  RK_ASSERT_OK(MakeDirectories(options_.path));
  pid_t pid = StartChild([this]() -> std::string {
    if (std::string error = MountPrivately(options_.path, "size=12m"); !error.empty()) return error;
    auto store = Store::Open(options_);
    if (!store.ok()) return store.status().ToString();
    TestImage small = NumberedImage(1), large;
    if (auto info = small.Commit(**store, "small"); !info.ok()) return info.status().ToString();
    uint64_t free_before = (*store)->Stats()->file_system.free_bytes;
    // Too large by a little, by much, and so much that the space is asked for beforehand.
    for (size_t pages : {3000, 6000, 20000}) {
      large.objects["m"][0] = MakePages(pages, 5);
      auto info = large.Commit(**store, "large");
      if (!absl::IsResourceExhausted(info.status()))
        return absl::StrCat(pages, ": ", info.status().ToString());
      for (const char* part : {"free", "gc", options_.path.c_str()}) {
        if (info.status().message().find(part) == absl::string_view::npos) return info.status().ToString();
      }
      if ((*store)->Stats()->file_system.free_bytes + (64 << 10) < free_before) return "space is lost";
      if ((*store)->Find("large").ok()) return "half an image is visible";
    }
    auto compared = small.Compare(**store, "small");
    if (!compared.ok()) return compared.status().ToString();
    if (!compared->empty()) return *compared;
    if (auto info = NumberedImage(2).Commit(**store, "next"); !info.ok()) return info.status().ToString();
    FsckOptions options;
    options.read_data = true;
    auto report = (*store)->Fsck(options);
    if (!report.ok()) return report.status().ToString();
    return report->problems.empty() ? "" : report->problems.front();
  });
  EXPECT_EQ(WaitForChild(pid), 0);
}

TEST_F(StoreProcessTest, ReadsFromAReadOnlyFileSystem) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  Reopen();
  RK_ASSERT_OK(NumberedImage(3).Commit(*store_, "three"));
  store_.reset();
  pid_t pid = StartChild([this]() -> std::string {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      return "unshare";
    const char* path = options_.path.c_str();
    if (mount(path, path, nullptr, MS_BIND, nullptr) != 0 ||
        mount(nullptr, path, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) != 0) {
      return "remount";
    }
    auto refused = Store::Open(options_).status();
    if (!absl::IsPermissionDenied(refused)) return refused.ToString();
    StoreOptions read_only = options_;
    read_only.read_only = true;
    auto store = Store::Open(read_only);
    if (!store.ok()) return store.status().ToString();
    if ((*store)->List()->size() != 1) return "list";
    auto compared = NumberedImage(3).Compare(**store, "three");
    if (!compared.ok()) return compared.status().ToString();
    if (!compared->empty()) return *compared;
    if (!absl::IsPermissionDenied((*store)->NewImage(Named("x")).status())) return "NewImage";
    if (!absl::IsPermissionDenied((*store)->Remove("three"))) return "Remove";
    if (!absl::IsPermissionDenied((*store)->Gc({}).status())) return "Gc";
    auto report = (*store)->Fsck({});
    if (!report.ok()) return report.status().ToString();
    return report->problems.empty() ? "" : report->problems.front();
  });
  EXPECT_EQ(WaitForChild(pid), 0);
}

}  // namespace
}  // namespace rekindle::store
