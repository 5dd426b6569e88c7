#include "gpu_state/utility_failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace rekindle::gpu {
namespace {

using ::testing::HasSubstr;

constexpr pid_t kNobody = 1 << 30;

absl::Status Failure(const std::string& printed, int code = 1, int signal = 0, pid_t pid = ::getpid()) {
  const absl::Status failure = UtilityFailure(pid, "--get-state", {{code, signal}, printed});
  EXPECT_THAT(std::string(failure.message()), HasSubstr(printed));
  EXPECT_THAT(std::string(failure.message()), HasSubstr(absl::StrCat("process ", pid, ": cuda-checkpoint")));
  return failure;
}

TEST(UtilityFailureTest, OnlyTheDriversWordsSayThatAProcessUsesNoCuda) {
  EXPECT_TRUE(absl::IsNotFound(Failure("Could not get state of process 7: \"initialization error\"")));
  EXPECT_TRUE(absl::IsNotFound(Failure("nothing that is known", 1, 0, kNobody)));
  const std::string os =
      "Could not get state of process 7: \"OS call failed or operation not supported on this OS\"";
  EXPECT_TRUE(absl::IsNotFound(Failure(os, 1, 0, kNobody)));
  EXPECT_TRUE(absl::IsInternal(Failure(os)));
  // It has no access itself.
  EXPECT_TRUE(absl::IsInternal(Failure("Error initializing CUDA: \"initialization error\"")));
  EXPECT_TRUE(absl::IsInternal(Failure("Error initializing CUDA: \"no such words\"", 1, 0, kNobody)));
  EXPECT_TRUE(absl::IsInternal(Failure("")));
  EXPECT_TRUE(
      absl::IsInternal(Failure("cuda-checkpoint: error while loading shared libraries: libcuda.so.1", 5)));
}

TEST(UtilityFailureTest, WhatTheDriverRefuses) {
  const auto of = [](const char* words) {
    return Failure(absl::StrCat("Could not restore process 7: \"", words, "\"")).code();
  };
  EXPECT_EQ(of("out of memory"), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(of("device not ready"), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(of("operation not supported"), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(of("operation not permitted"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(of("the operation cannot be performed in the present state"),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(of("invalid argument"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(of("words of a later driver"), absl::StatusCode::kInternal);
}

TEST(UtilityFailureTest, WhatBefellTheUtility) {
  EXPECT_TRUE(absl::IsUnavailable(Failure("", 0, SIGSEGV)));
  EXPECT_TRUE(absl::IsUnavailable(Failure("", 0, SIGKILL, kNobody)));
  EXPECT_TRUE(absl::IsFailedPrecondition(Failure("sh: 1: cuda-checkpoint: not found", 127)));
  EXPECT_TRUE(absl::IsFailedPrecondition(Failure("Permission denied", 126)));
  const absl::Status use = Failure("CUDA checkpoint and restore utility.\n--get-state --pid <pid>");
  EXPECT_TRUE(absl::IsUnimplemented(use)) << use;
  EXPECT_THAT(std::string(use.message()), HasSubstr("newer"));
  EXPECT_TRUE(absl::IsUnimplemented(Failure("unrecognized option: --get-restore-tid")));
}

TEST(UtilityFailureTest, WhatCanNotBeRunSaysNothingOfTheProcess) {
  const auto of = [](const absl::Status& status) {
    const absl::Status failure = UtilityNotRun(7, "--get-state", status);
    EXPECT_THAT(std::string(failure.message()), HasSubstr(std::string(status.message())));
    return failure.code();
  };
  EXPECT_EQ(of(absl::NotFoundError("no such file")), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(of(absl::PermissionDeniedError("not executable")), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(of(absl::DeadlineExceededError("not within 60 s")), absl::StatusCode::kUnavailable);
  EXPECT_EQ(of(absl::ResourceExhaustedError("no more processes")), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoOf(UtilityNotRun(7, "--get-state", ErrnoStatus(EMFILE, "starting it"))), EMFILE);
}

}  // namespace
}  // namespace rekindle::gpu
