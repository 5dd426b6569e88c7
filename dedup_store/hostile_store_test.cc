// What somebody who may write a store's folder can put there: links to what is another's, and what is no
// file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dedup_store/block_io.h"
#include "dedup_store/limit_guard.h"
#include "dedup_store/scrub.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

constexpr off_t kTerabytes = off_t{4} << 40;

class HostileStoreTest : public TroubledStoreTest {
 protected:
  void SetUp() override {
    TroubledStoreTest::SetUp();
    image_.objects[kObject][0] = MakePages(64, 1);
    RK_ASSERT_OK(image_.Commit(*store_, "job"));
    ASSERT_EQ(::mkdir(Strangers("").c_str(), 0755), 0);
  }
  std::string Path(absl::string_view name) const { return absl::StrCat(options_.path, "/", name); }
  std::string Strangers(absl::string_view name) const {
    return absl::StrCat(folder_->path(), "/strangers/", name);
  }
  // The only one there is with that ending.
  std::string FileOf(const std::string& folder, absl::string_view ending) const {
    for (const auto& entry : std::filesystem::directory_iterator(Path(folder))) {
      if (absl::EndsWith(entry.path().string(), ending)) return entry.path();
    }
    ADD_FAILURE() << ending << " in " << folder;
    return "";
  }
  void PutLinkAt(const std::string& path, const std::string& target) const {
    std::filesystem::remove_all(path);
    ASSERT_EQ(::symlink(target.c_str(), path.c_str()), 0);
  }
  void PutFifoAt(const std::string& path) const {
    std::filesystem::remove_all(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  }
  void PutHugeAt(const std::string& path) const {
    if (!PathExists(path)) RK_ASSERT_OK(WriteFileAtomically(path, ""));
    ASSERT_EQ(::truncate(path.c_str(), kTerabytes), 0);
  }

  TestImage image_;
};

TEST_F(HostileStoreTest, GcRemovesNothingThroughALink) {
  // With names as the store's own have them.
  const std::vector<std::string> names = {"probe.12", "00000000deadbeef.pack", "00000000deadbeef.idx",
                                          "00000000deadbeef.pages",
                                          absl::StrCat(std::string(64, 'a'), ".hints")};
  for (const std::string& name : names) RK_ASSERT_OK(WriteFileAtomically(Strangers(name), "theirs"));
  for (const char* folder : {"tmp", "notes", "index", "packs"}) {
    const std::string aside = Path(absl::StrCat(folder, ".aside"));
    std::filesystem::rename(Path(folder), aside);
    PutLinkAt(Path(folder), Strangers(""));
    const auto told = store_->Gc({});
    ASSERT_FALSE(told.ok()) << folder;
    EXPECT_TRUE(absl::StrContains(told.status().message(), absl::StrCat(Path(folder), " is a symbolic link")))
        << told.status();
    EXPECT_FALSE(Repair().ok()) << folder;
    for (const std::string& name : names) EXPECT_TRUE(PathExists(Strangers(name))) << folder << " " << name;
    ASSERT_EQ(::unlink(Path(folder).c_str()), 0);
    std::filesystem::rename(aside, Path(folder));
  }
  RK_ASSERT_OK(store_->Gc({}));
  ExpectWhole();
}

TEST_F(HostileStoreTest, GcLeavesWhatIsNotTheStores) {
  const std::vector<std::string> others = {"tmp/diary",     "tmp/report.12",   "tmp/probe",
                                           "tmp/probe.txt", "notes/diary.txt", "notes/diary"};
  for (const std::string& name : others) RK_ASSERT_OK(WriteFileAtomically(Path(name), "theirs"));
  const auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->leftovers_removed, 0u);
  for (const std::string& name : others) EXPECT_TRUE(PathExists(Path(name))) << name;
}

TEST_F(HostileStoreTest, GcGoesOnBehindWhatIsNoFile) {
  PutFifoAt(Path("tmp/0000000000000001.pack"));
  PutLinkAt(Path("tmp/0000000000000002.idx"), Strangers("none"));
  RK_ASSERT_OK(WriteFileAtomically(Path("tmp/probe.12"), ""));
  RK_ASSERT_OK(WriteFileAtomically(Path("LIMITS.tmp-1-2"), ""));
  const auto told = store_->Gc({});
  ASSERT_FALSE(told.ok());
  EXPECT_TRUE(absl::StrContains(told.status().message(), "gc did all else, but")) << told.status();
  EXPECT_FALSE(PathExists(Path("tmp/probe.12")));
  EXPECT_FALSE(PathExists(Path("LIMITS.tmp-1-2")));
  std::filesystem::remove(Path("tmp/0000000000000001.pack"));
  std::filesystem::remove(Path("tmp/0000000000000002.idx"));
  RK_ASSERT_OK(store_->Gc({}));
}

// As a file server has one of what a client of it has open.
TEST_F(HostileStoreTest, FileOfWhichAnotherHasALeaseIsWaitedFor) {
  const std::string path = FileOf("packs", ".pack");
  sigset_t breaking;
  sigemptyset(&breaking);
  sigaddset(&breaking, SIGRTMIN);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &breaking, nullptr), 0);
  Reopen();
  const UniqueFd leased(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::fcntl(leased.get(), F_SETSIG, SIGRTMIN), 0);
  if (::fcntl(leased.get(), F_SETLEASE, F_RDLCK) != 0) GTEST_SKIP() << "no leases here: " << strerror(errno);
  absl::Status opened;
  std::thread opens([&] { opened = RealBlockIo()->Open(path, true).status(); });
  const timespec patience{30, 0};
  EXPECT_EQ(::sigtimedwait(&breaking, nullptr, &patience), SIGRTMIN) << strerror(errno);
  EXPECT_EQ(::fcntl(leased.get(), F_SETLEASE, F_UNLCK), 0);
  opens.join();
  EXPECT_TRUE(opened.ok()) << opened;
  ASSERT_EQ(::pthread_sigmask(SIG_UNBLOCK, &breaking, nullptr), 0);
}

TEST_F(HostileStoreTest, FormatThatIsNoFileOfTheStores) {
  for (const auto& put : {std::function<void()>([&] { PutFifoAt(Path("FORMAT")); }),
                          std::function<void()>([&] { PutLinkAt(Path("FORMAT"), "/dev/zero"); }),
                          std::function<void()>([&] { PutLinkAt(Path("FORMAT"), Strangers("none")); }),
                          std::function<void()>([&] { PutHugeAt(Path("FORMAT")); })}) {
    put();
    Reopen();
    image_.ExpectIn(*store_, "job");  // a pack has what was in it
    RK_ASSERT_OK(Repair());
    Reopen();
    ExpectWhole();
  }
  // Of none that has no pack.
  std::filesystem::remove(FileOf("packs", ".pack"));
  PutFifoAt(Path("FORMAT"));
  const auto none = Store::Open(options_);
  ASSERT_FALSE(none.ok());
  EXPECT_TRUE(absl::StrContains(none.status().message(), Path("FORMAT") + " is a FIFO")) << none.status();
}

TEST_F(HostileStoreTest, OtherFilesThatAreNone) {
  LimitsChange change;
  change.high_water_percent = 90;
  std::string warning;
  for (const auto& put : {std::function<void()>([&] { PutHugeAt(Path("LIMITS")); }),
                          std::function<void()>([&] { PutLinkAt(Path("LIMITS"), Strangers("none")); })}) {
    put();
    EXPECT_EQ(ReadLimits(options_.path).status().code(), absl::StatusCode::kFailedPrecondition);
    // It is not written anew: what is meant may lie elsewhere.
    EXPECT_FALSE(store_->ChangeLimits(change, &warning).ok());
    std::filesystem::remove(Path("LIMITS"));
  }

  PutLinkAt(Path("catalog/lock"), Strangers("none"));
  const auto locked = image_.Commit(*store_, "second");
  ASSERT_FALSE(locked.ok());
  EXPECT_TRUE(absl::StrContains(locked.status().message(), "catalog/lock is a symbolic link"))
      << locked.status();
  std::filesystem::remove(Path("catalog/lock"));

  PutFifoAt(FileOf("index", ".pages"));
  PutFifoAt(Path("SCRUB"));
  Reopen();
  image_.objects[kObject][0] = MakePages(128, 1);
  RK_ASSERT_OK(image_.Commit(*store_, "second"));
  image_.ExpectIn(*store_, "second");
  RK_ASSERT_OK(ReadScrubStatus(*store_));

  // It is known to nobody whether that is lost: the image stays.
  const std::string pack = FileOf("packs", ".pack");
  std::filesystem::rename(pack, Strangers("pack"));
  PutLinkAt(pack, Strangers("pack"));
  Reopen();
  (void)Repair();
  std::filesystem::rename(Strangers("pack"), pack);
  Reopen();
  EXPECT_TRUE(store_->OpenImage("job").ok());
  image_.ExpectIn(*store_, "second");
}

TEST_F(HostileStoreTest, ACopyOfTheCatalogThatIsLongerThanAnyOfThemCanBe) {
  PutHugeAt(FileOf("catalog", ".a"));
  Reopen();
  image_.ExpectIn(*store_, "job");
  for (const char* ending : {".a", ".b"}) PutHugeAt(FileOf("catalog", ending));
  store_.reset();  // what is open in this process has it in memory
  const auto lost = Store::Open(options_);
  ASSERT_FALSE(lost.ok());
  EXPECT_TRUE(absl::StrContains(lost.status().message(), "fsck --repair")) << lost.status();
  options_.rebuild_catalog = true;
  Reopen();
  RK_ASSERT_OK(Repair());
  image_.ExpectIn(*store_, "job");
}

}  // namespace
}  // namespace rekindle::store
