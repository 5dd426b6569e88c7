#include "daemon/gpu_lease_record.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GpuLeaseRecordTest : public ::testing::Test {
 protected:
  ino_t Inode() const {
    struct stat info {};
    EXPECT_EQ(::stat(path_.c_str(), &info), 0);
    return info.st_ino;
  }

  const TemporaryDirectory folder_ =
      TemporaryDirectory::Make(testing::TempDir(), "rekindle_lease_record_test.").value();
  const std::string path_ = folder_.path() + "/gpu/leases.json";
  // A number of ticks that no floating-point number is.
  const GpuJobLeases leased_{{41, (1ull << 60) + 1}, 3, false}, pinned_{{42, 7}, 0, true};
};

TEST_F(GpuLeaseRecordTest, WhatIsWrittenIsRead) {
  GpuLeaseRecord record(path_);
  EXPECT_THAT(*record.Read(), IsEmpty());
  ASSERT_TRUE(record.Write({leased_, pinned_}).ok());
  EXPECT_THAT(*GpuLeaseRecord(path_).Read(), ElementsAre(leased_, pinned_));
  ASSERT_TRUE(record.Write({pinned_}).ok());
  EXPECT_THAT(*GpuLeaseRecord(path_).Read(), ElementsAre(pinned_));
  ASSERT_TRUE(record.Write({}).ok());
  EXPECT_THAT(*GpuLeaseRecord(path_).Read(), IsEmpty());
}

TEST_F(GpuLeaseRecordTest, IdsOfLeasesAreKept) {
  GpuJobLeases with_ids = leased_;
  with_ids.ids = {"a", "b"};
  GpuLeaseRecord record(path_);
  ASSERT_TRUE(record.Write({with_ids}).ok());
  EXPECT_THAT(*GpuLeaseRecord(path_).Read(), ElementsAre(with_ids));
  with_ids.ids = {"a", "c"};
  ASSERT_TRUE(record.Write({with_ids}).ok());
  EXPECT_THAT(*GpuLeaseRecord(path_).Read(), ElementsAre(with_ids));
  // More than there are leases.
  with_ids.leases = 1;
  ASSERT_TRUE(record.Write({with_ids}).ok());
  EXPECT_TRUE(absl::IsDataLoss(GpuLeaseRecord(path_).Read().status()));
}

TEST_F(GpuLeaseRecordTest, WhatItSaysAlreadyIsNotWrittenAgain) {
  GpuLeaseRecord record(path_);
  ASSERT_TRUE(record.Write({leased_}).ok());
  // Kept open, so that no other file gets its number.
  const UniqueFd open = OpenFile(path_, O_RDONLY).value();
  const ino_t inode = Inode();
  ASSERT_TRUE(record.Write({leased_}).ok());
  EXPECT_EQ(Inode(), inode);
  ASSERT_TRUE(record.Write({leased_, pinned_}).ok());
  EXPECT_NE(Inode(), inode);
}

TEST_F(GpuLeaseRecordTest, ADamagedOneIsNamedAndReplaced) {
  GpuLeaseRecord record(path_);
  ASSERT_TRUE(record.Write({leased_}).ok());
  const std::string whole = *ReadFile(path_);
  for (const std::string& text :
       {whole.substr(0, whole.size() / 2), std::string(), std::string("{}"),
        std::string(R"({"format": 1, "jobs": [{"pid": 0, "leases": 1}]})"),
        std::string(R"({"format": 1, "jobs": [{"pid": 5, "leases": 4000000000}]})")}) {
    ASSERT_TRUE(ReplaceFile(path_, text).ok());
    const absl::Status damaged = record.Read().status();
    EXPECT_TRUE(absl::IsDataLoss(damaged)) << text << ": " << damaged;
    EXPECT_THAT(damaged.message(), HasSubstr(path_));
  }
  ASSERT_TRUE(GpuLeaseRecord(path_).Write({pinned_}).ok());
  EXPECT_THAT(*record.Read(), ElementsAre(pinned_));
}

TEST_F(GpuLeaseRecordTest, OneOfANewerVersionIsSetAsideBeforeTheNextIsWritten) {
  GpuLeaseRecord record(path_);
  for (const std::string& text : {std::string(R"({"format": 2, "jobs": []})"),
                                  std::string(R"({"format": 1, "jobs": [{"pid": 5, "shared": true}]})")}) {
    ASSERT_TRUE(MakeDirectories(std::filesystem::path(path_).parent_path().string()).ok());
    ASSERT_TRUE(ReplaceFile(path_, text).ok());
    const absl::Status newer = record.Read().status();
    EXPECT_TRUE(absl::IsFailedPrecondition(newer)) << text << ": " << newer;
    const absl::StatusOr<std::string> aside = record.SetAside();
    ASSERT_TRUE(aside.ok()) << aside.status();
    ASSERT_TRUE(GpuLeaseRecord(path_).Write({pinned_}).ok());
    EXPECT_EQ(*ReadFile(*aside), text);
    EXPECT_THAT(*record.Read(), ElementsAre(pinned_));
  }
}

TEST_F(GpuLeaseRecordTest, WhatCouldNotBeWrittenIsTriedAgain) {
  GpuLeaseRecord record(path_);
  ASSERT_TRUE(MakeDirectories(path_ + "/in-the-way").ok());
  const absl::Status refused = record.Write({leased_});
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(refused.message(), HasSubstr(path_));
  ASSERT_TRUE(RemoveTree(path_).ok());
  ASSERT_TRUE(record.Write({leased_}).ok());
  EXPECT_THAT(*record.Read(), ElementsAre(leased_));
}

TEST_F(GpuLeaseRecordTest, OneAtATimeHasIt) {
  std::optional<GpuLeaseRecord> first(std::in_place, path_);
  GpuLeaseRecord second(path_);
  EXPECT_FALSE(second.IsTakenByOther());
  ASSERT_TRUE(first->Take().ok());
  EXPECT_TRUE(first->Take().ok());
  EXPECT_FALSE(first->IsTakenByOther());
  EXPECT_TRUE(second.IsTakenByOther());
  const absl::Status taken = second.Take();
  EXPECT_TRUE(absl::IsUnavailable(taken)) << taken;
  for (const std::string& part :
       {absl::StrCat("process ", ::getpid()), folder_.path(), std::string("--runtime-dir")})
    EXPECT_THAT(std::string(taken.message()), HasSubstr(part));
  first.reset();
  EXPECT_FALSE(second.IsTakenByOther());
  EXPECT_TRUE(second.Take().ok());
}

TEST_F(GpuLeaseRecordTest, WhereACleanerRemovesTheLockTheNextHasIt) {
  GpuLeaseRecord first(path_), second(path_);
  ASSERT_TRUE(first.Take().ok());
  ASSERT_EQ(::unlink((path_ + ".lock").c_str()), 0);
  ASSERT_TRUE(first.Take().ok());
  EXPECT_TRUE(absl::IsUnavailable(second.Take()));
  ASSERT_EQ(::unlink((path_ + ".lock").c_str()), 0);
  ASSERT_TRUE(second.Take().ok());
  EXPECT_TRUE(absl::IsUnavailable(first.Take()));
  EXPECT_TRUE(first.IsTakenByOther());
}

TEST_F(GpuLeaseRecordTest, WhatAnotherWroteMeanwhileIsNotTakenForOurs) {
  GpuLeaseRecord first(path_);
  ASSERT_TRUE(first.Take().ok());
  ASSERT_TRUE(first.Write({leased_}).ok());
  ASSERT_EQ(::unlink((path_ + ".lock").c_str()), 0);
  {
    GpuLeaseRecord second(path_);
    ASSERT_TRUE(second.Take().ok());
    ASSERT_TRUE(second.Write({pinned_}).ok());
    EXPECT_FALSE(first.Take().ok());
  }
  ASSERT_TRUE(first.Take().ok());
  ASSERT_TRUE(first.Write({leased_}).ok());
  EXPECT_THAT(*first.Read(), ElementsAre(leased_));
}

}  // namespace
}  // namespace rekindle::daemon
