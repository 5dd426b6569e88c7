// Requests that are refused before anything is done, because what would be done instead is not what they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "daemon/copies.h"
#include "daemon/copy_command.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "daemon/test_node.h"
#include "dedup_store/store_testing.h"

namespace rekindle::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RefusedRequestsTest : public ::testing::Test {
 protected:
  RefusedRequestsTest() {
    call_.cancelled = [] { return false; };
  }

  absl::Status RunOf(const v1::RunRequest& request) {
    return daemon::Run(*node_, call_, request, [this](const v1::JobEvent& event) {
      if (event.has_started()) ++started_;
      return true;
    });
  }
  absl::Status CheckClone(const std::string& variable) {
    v1::CloneOptions clone;
    (*clone.mutable_environment())[variable] = "1";
    return CheckCloneOptions(*node_, call_.caller, clone);
  }

  TestNode node_{[](NodeOptions& options) { options.daemon = true; }};
  Call call_;
  int started_ = 0;
};

TEST_F(RefusedRequestsTest, AJobThatIsToGoOnDoesNotBeginAnew) {
  const std::string file = node_.folder() + "/written";
  v1::RunRequest request;
  for (const char* argument : {"/bin/sh", "-c"}) request.add_argv(argument);
  request.add_argv(absl::StrCat("echo anew > ", file));
  request.set_working_directory("/");
  v1::RunRequest from = request, older = request;
  from.set_from_image("job:7");
  older.add_older_images("job:6");
  const absl::Status of_from = RunOf(from), of_older = RunOf(older);
  EXPECT_TRUE(absl::IsInvalidArgument(of_from)) << of_from;
  EXPECT_THAT(std::string(of_from.message()), AllOf(HasSubstr("from_image"), HasSubstr("supervision")));
  EXPECT_TRUE(absl::IsInvalidArgument(of_older)) << of_older;
  EXPECT_THAT(std::string(of_older.message()), AllOf(HasSubstr("older_images"), HasSubstr("from_image")));
  EXPECT_EQ(started_, 0);
  EXPECT_FALSE(PathExists(file));
}

TEST_F(RefusedRequestsTest, CopiesGetVariablesThatHaveNames) {
  for (const char* name : {"", "a=b", "=x"}) EXPECT_TRUE(absl::IsInvalidArgument(CheckClone(name))) << name;
  EXPECT_TRUE(CheckClone("NAME").ok());
}

TEST_F(RefusedRequestsTest, ACopyWithoutTheHookWasNotToldItsEnvironment) {
  v1::CloneOptions clone;
  v1::JobStarted started;
  WarnOfEnvironment(clone, /*has_hook=*/false, &started);
  (*clone.mutable_environment())["NAME"] = "1";
  WarnOfEnvironment(clone, /*has_hook=*/true, &started);
  EXPECT_EQ(started.warnings_size(), 0);
  WarnOfEnvironment(clone, /*has_hook=*/false, &started);
  ASSERT_EQ(started.warnings_size(), 1);
  EXPECT_THAT(started.warnings(0), HasSubstr("environment"));
}

TEST_F(RefusedRequestsTest, LabelsHaveKeys) {
  for (const char* key : {"", "a=b", "="}) {
    google::protobuf::Map<std::string, std::string> labels;
    labels[key] = "value";
    EXPECT_TRUE(absl::IsInvalidArgument(CheckLabelsOfCaller(labels))) << key;
  }
}

TEST_F(RefusedRequestsTest, AJobGetsThreeDescriptorsOrNone) {
  for (const bool detach : {false, true}) {
    v1::RestoreRequest request;
    request.set_image("job:1");
    request.set_detach(detach);
    request.add_stdio_fds(-1);
    const absl::Status refused =
        daemon::Restore(*node_, call_, request, [](const v1::JobEvent&) { return true; });
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("stdio_fds"));
  }
}

TEST_F(RefusedRequestsTest, APlaceForCopiesHasANameThatACommandTakes) {
  v1::CopyTo to;
  to.set_place("/" + std::string(size_t{256} << 10, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckCopyTo(to)));
  to.set_place("/elsewhere");
  EXPECT_TRUE(CheckCopyTo(to).ok());
}

}  // namespace
}  // namespace rekindle::daemon
