// A store on a file system that several nodes have, such as NFS.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "dedup_store/hooked_store_testing.h"

namespace rekindle::store {
namespace {

// Exclusive locks are for files that were opened for writing.
absl::Status AsNfs(const HookedDisk::Operation& operation) {
  const bool refused =
      operation.call == HookedDisk::Call::kLock && operation.exclusive && !operation.writable;
  return refused ? ErrnoStatus(EBADF, "locking " + operation.path) : absl::OkStatus();
}

class SharedStoreTest : public HookedStoreTest {
 protected:
  void SetUp() override {
    hook_ = AsNfs;
    HookedStoreTest::SetUp();
    image_.objects["m"][0] = MakePages(100, 1);
    RK_ASSERT_OK(image_.Commit(*store_, "job:1"));
  }

  TestImage image_;
};

TEST_F(SharedStoreTest, GcTakesWhatWritersLeftThere) {
  const std::string leftover = options_.path + "/packs/00000000deadbeef.pack";
  RK_ASSERT_OK(WriteFileAtomically(leftover, "of a writer that died"));
  GcOptions dry;
  dry.dry_run = true;
  auto report = store_->Gc(dry);
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->leftovers_removed, 1u);
  EXPECT_TRUE(PathExists(leftover));
  report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->leftovers_removed, 1u);
  EXPECT_FALSE(PathExists(leftover));
}

// The client keeps a file that is removed while it is open, under another name.
TEST_F(SharedStoreTest, ANewCatalogIsSeenThoughTheOldOneHasANameStill) {
  const std::string catalog = options_.path + "/catalog/";
  const std::vector<std::string> names = ListDirectory(catalog).value();
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".b")) {
      ASSERT_EQ(::link((catalog + name).c_str(), (catalog + ".nfs0001").c_str()), 0);
    }
    if (!absl::EndsWith(name, ".a")) continue;
    const int fd = ::open((catalog + name).c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(::pwrite(fd, "?", 1, 60), 1);
    ::close(fd);
  }
  HookedDisk of_the_other(AsNfs);
  {
    StoreOptions options = options_;
    options.io = &of_the_other;
    auto other = Store::Open(options);
    RK_ASSERT_OK(other);
    FsckOptions repair;
    repair.repair = true;
    RK_ASSERT_OK((*other)->Fsck(repair));  // a new generation
    RK_ASSERT_OK(image_.Commit(**other, "job:2"));
  }
  RK_ASSERT_OK(store_->Find("job:2"));
  image_.ExpectIn(*store_, "job:2");
  RK_ASSERT_OK(image_.Commit(*store_, "job:3"));
}

}  // namespace
}  // namespace rekindle::store
