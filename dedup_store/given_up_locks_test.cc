// A lock that is given up is so though a child that another thread is just making has the file, too.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/file.h"
#include "base/test_child.h"
#include "dedup_store/block_io.h"
#include "dedup_store/scrub_state.h"

namespace rekindle::store {
namespace {

class GivenUpLocksTest : public testing::Test {
 protected:
  const TemporaryDirectory folder_ =
      TemporaryDirectory::Make(testing::TempDir(), "rekindle_given_up_locks_test.").value();
};

TEST_F(GivenUpLocksTest, OfAFileOfTheStore) {
  const std::string path = folder_.path() + "/file";
  ASSERT_TRUE(WriteFileAtomically(path, "x").ok());
  auto first = RealBlockIo()->Open(path, /*writable=*/true).value();
  const auto second = RealBlockIo()->Open(path, /*writable=*/true).value();
  ASSERT_TRUE(first->Lock(LockMode::kExclusive, /*wait=*/false).value());
  const TestChild child;  // as one that has not begun its program: it has what we have open
  ASSERT_TRUE(child.prepared());
  EXPECT_FALSE(second->Lock(LockMode::kShared, /*wait=*/false).value());
  first.reset();
  EXPECT_TRUE(second->Lock(LockMode::kShared, /*wait=*/false).value());
}

TEST_F(GivenUpLocksTest, OfTheOneWhoScrubs) {
  absl::StatusOr<HeldLock> first = LockScrub(folder_.path());
  ASSERT_TRUE(first.ok()) << first.status();
  const TestChild child;
  ASSERT_TRUE(child.prepared());
  EXPECT_TRUE(absl::IsUnavailable(LockScrub(folder_.path()).status()));
  first->Reset();
  const absl::StatusOr<HeldLock> second = LockScrub(folder_.path());
  EXPECT_TRUE(second.ok()) << second.status();
}

}  // namespace
}  // namespace rekindle::store
