// What is made of the answers of a sandbox; tests/integration/test_clone.py has real ones.
#include "restore/sandbox.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/file.h"
#include "base/packet_socket.h"
#include "base/status.h"
#include "base/status_json.h"

namespace rekindle::restore {
namespace {

// What MakeInside returns where a sandbox answers so.
absl::Status Answered(const std::string& answer) {
  const auto folder = TemporaryDirectory::Make(testing::TempDir(), "rekindle_sandbox_test.").value();
  const auto sockets = PacketSocketPair().value();
  EXPECT_TRUE(SendPacket(sockets.second.get(), answer).ok());
  return MakeInside(sockets.first.get(), folder.path(), Network::kHost).status();
}

TEST(SandboxTest, WhatAnErrorWasMadeOfComesBesideItsWords) {
  nlohmann::json answer;
  PutStatus(WithMessage(ErrnoStatus(ENOENT, "binding /a"), "binding /a: it must be there"), &answer);
  const absl::Status told = Answered(answer.dump());
  EXPECT_TRUE(absl::IsNotFound(told)) << told;
  EXPECT_EQ(ErrnoOf(told), ENOENT) << told;
}

TEST(SandboxTest, AnOlderOneHasItsWordsAlone) {
  const absl::Status told = Answered(R"({"error": "binding /a: No such file or directory", "code": 5})");
  EXPECT_TRUE(absl::IsNotFound(told)) << told;
  EXPECT_EQ(ErrnoOf(told), ENOENT) << told;
}

}  // namespace
}  // namespace rekindle::restore
