#include "daemon/grpc_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <vector>

#include "base/file.h"
#include "daemon/test_node.h"

namespace rekindle::daemon {
namespace {

using ::testing::HasSubstr;

class GrpcCallTest : public testing::Test {
 protected:
  absl::StatusOr<Call> MakeCallOf(uid_t uid, CallsOfUsers::Kind kind = CallsOfUsers::Kind::kAny) {
    static const std::function<bool()> kNever;
    Caller caller;
    caller.kind = Caller::Kind::kLocal;
    caller.uid = uid;
    return MakeCall(
        *node_, [&](const Peer&) { return caller; }, kNever, &context_, kind);
  }

  TestNode node_{[](NodeOptions& options) { options.daemon = true; }};
  grpc::ServerContext context_;
};

TEST_F(GrpcCallTest, CallsOfOneUserAreLimited) {
  constexpr uid_t kRoot = 0, kFirstUser = 61000, kSecondUser = 61001;
  std::vector<Call> calls;
  while (calls.size() < CallsOfUsers::kMostOfOne) {
    auto call = MakeCallOf(kFirstUser);
    ASSERT_TRUE(call.ok()) << calls.size() << ": " << call.status();
    calls.push_back(*std::move(call));
  }
  const absl::Status refused = MakeCallOf(kFirstUser).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("61000"));
  EXPECT_TRUE(MakeCallOf(kSecondUser).ok());
  for (size_t i = 0; i <= CallsOfUsers::kMostOfOne; ++i) {
    auto call = MakeCallOf(kRoot);
    ASSERT_TRUE(call.ok()) << call.status();
    calls.push_back(*std::move(call));
  }

  calls.erase(calls.begin());
  auto next = MakeCallOf(kFirstUser);
  EXPECT_TRUE(next.ok()) << next.status();
  EXPECT_FALSE(MakeCallOf(kFirstUser).ok());
}

TEST_F(GrpcCallTest, WhoHasAllItsCallsInWorkCanReleaseLeasesStill) {
  constexpr uid_t kUser = 61000;
  std::vector<Call> calls;
  while (calls.size() < CallsOfUsers::kMostOfOne) {
    auto call = MakeCallOf(kUser);
    ASSERT_TRUE(call.ok()) << calls.size() << ": " << call.status();
    calls.push_back(*std::move(call));
  }
  std::vector<Call> releases;
  while (releases.size() < CallsOfUsers::kMostReleasesOfOne) {
    auto release = MakeCallOf(kUser, CallsOfUsers::Kind::kRelease);
    ASSERT_TRUE(release.ok()) << releases.size() << ": " << release.status();
    releases.push_back(*std::move(release));
  }
  EXPECT_FALSE(MakeCallOf(kUser, CallsOfUsers::Kind::kRelease).ok());
  releases.clear();
  EXPECT_FALSE(MakeCallOf(kUser).ok());
  EXPECT_TRUE(MakeCallOf(kUser, CallsOfUsers::Kind::kRelease).ok());
}

// Who has cancelled nothing is told to try again.
TEST_F(GrpcCallTest, WhatTheDaemonsEndCancelsIsUnavailable) {
  Call call;
  bool by_client = false, by_daemon = false;
  call.cancelled = [&] { return by_client || by_daemon; };
  const absl::Status cancelled = absl::CancelledError("the lease was cancelled");
  const auto told = [&](const absl::Status& status) {
    return ForClient(
        *node_, call, [&] { return by_daemon; }, status);
  };
  EXPECT_EQ(told(cancelled), cancelled);
  node_->BeginStopping();
  EXPECT_EQ(told(cancelled).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(told(cancelled).message()), HasSubstr("rekindled ends: the lease"));
  EXPECT_EQ(told(absl::NotFoundError("none")), absl::NotFoundError("none"));
  by_client = true;
  EXPECT_EQ(told(cancelled), cancelled);
  by_daemon = true;
  EXPECT_EQ(told(cancelled).code(), absl::StatusCode::kUnavailable);
}

TEST(GuardedTest, WhatTheLibraryThrowsForWantOfMemory) {
  grpc::ServerContext context;
  const grpc::Status ended = Guarded(&context, []() -> absl::Status { throw std::bad_alloc(); });
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(ended.error_message(), HasSubstr("ulimit -v"));
}

// Percent-encoded, as a header field has it, and whole characters.
TEST(ToGrpcTest, MessagesFitIntoHeaders) {
  for (const char* letter : {"x", "é", "\n", "%", "日"}) {
    std::string text;
    while (text.size() < 10000) text += letter;
    const std::string sent = ToGrpc(absl::InternalError(text)).error_message();
    size_t encoded = 0;
    for (unsigned char byte : sent) encoded += byte >= 0x20 && byte < 0x7F && byte != '%' ? 1 : 3;
    EXPECT_LT(encoded, 7000u) << letter;
    EXPECT_GT(encoded, 4000u) << letter;
    EXPECT_THAT(sent, ::testing::EndsWith("…"));
    EXPECT_EQ((sent.size() - std::string("…").size()) % std::string(letter).size(), 0u) << letter;
  }
  EXPECT_EQ(ToGrpc(absl::InternalError("short é")).error_message(), "short é");
}

}  // namespace
}  // namespace rekindle::daemon
