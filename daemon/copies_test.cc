#include "daemon/copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <optional>
#include <string>

#include "base/file.h"
#include "daemon/rpcs.h"
#include "daemon/test_node.h"

namespace rekindle::daemon {
namespace {

using ::testing::HasSubstr;

class CopiesTest : public testing::Test {
 protected:
  CopiesTest() { call_.caller.kind = Caller::Kind::kSelf; }

  absl::Status Check(const v1::CloneOptions& clone) { return CheckCloneOptions(*node_, call_.caller, clone); }

  TestNode node_;
  Call call_;
};

TEST_F(CopiesTest, LimitsOfCpus) {
  v1::CloneOptions clone;
  for (const double cpus : {0.0, 0.01, 0.5, 64.0}) {
    clone.set_cpus(cpus);
    EXPECT_TRUE(Check(clone).ok()) << cpus;
  }
  for (const double cpus : {-1.0, 1e-9, 1e300, std::numeric_limits<double>::quiet_NaN(),
                            std::numeric_limits<double>::infinity()}) {
    clone.set_cpus(cpus);
    EXPECT_EQ(Check(clone).code(), absl::StatusCode::kInvalidArgument) << cpus;
  }
}

TEST_F(CopiesTest, LimitsOfMemory) {
  v1::CloneOptions clone;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{512} << 10, UINT64_MAX}) {
    clone.set_memory_bytes(bytes);
    EXPECT_TRUE(Check(clone).ok()) << bytes;
  }
  for (const uint64_t bytes : {uint64_t{1}, (uint64_t{512} << 10) - 1}) {
    clone.set_memory_bytes(bytes);
    EXPECT_EQ(Check(clone).code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
}

TEST_F(CopiesTest, ALogIsNotInTheServicesFolder) {
  auto store = node_->OpenStore(Node::Access::kCreate);
  ASSERT_TRUE(store.ok()) << store.status();
  v1::RestoreRequest request;
  request.mutable_clone();
  request.set_log("clone.log");
  const absl::Status refused = RestoreClones(*node_, call_, request, **store, store::ImageInfo(),
                                             criu::Installation(), [](const v1::JobEvent&) { return true; });
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("absolute"));
}

TEST_F(CopiesTest, ATemplateThatNobodyWaitsForIsTakenDown) {
  TemplateRecord record;
  record.name = "up";
  record.job.pid = ::getpid();
  EXPECT_EQ(node_->templates().Add(record, [] { return true; }).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(absl::IsNotFound(node_->templates().Find("up").status()));
  EXPECT_TRUE(node_->templates().Add(record, [] { return false; }).ok());
  EXPECT_TRUE(node_->templates().Find("up").ok());
}

}  // namespace
}  // namespace rekindle::daemon
