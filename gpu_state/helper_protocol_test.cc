#include "gpu_state/helper_protocol.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "base/status.h"

namespace rekindle::gpu {
namespace {

TEST(HelperProtocol, RequestsAreReadBack) {
  for (Action action : kAllActions) {
    HelperRequest request;
    request.id = 7;
    request.what = HelperRequest::What::kAct;
    request.pid = 1234;
    request.action = action;
    request.timeout_ms = 5000;
    request.pairs = {{"GPU-a", "GPU-b"}};
    auto read = HelperRequest::Decode(request.Encode());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->id, 7u);
    EXPECT_EQ(read->what, HelperRequest::What::kAct);
    EXPECT_EQ(read->pid, 1234);
    EXPECT_EQ(read->action, action);
    EXPECT_EQ(read->timeout_ms, 5000);
    EXPECT_EQ(read->pairs, request.pairs);
  }
}

TEST(HelperProtocol, AnswersAreReadBack) {
  HelperAnswer answer;
  answer.id = 9;
  answer.status = ErrnoStatus(ENOSPC, "no \"room\"\xff");
  answer.driver_version = 13000;
  answer.driver = "580.95.05";
  answer.means = "libcuda.so.1";
  answer.state = ProcessState::kCheckpointed;
  answer.view.devices = {{"GPU-a", "NVIDIA H200", 100, 40, false}, {"GPU-b", "NVIDIA H200", 100, 100, true}};
  answer.view.uses = {{17, "GPU-a", 60}, {18, "GPU-a", std::nullopt}};
  GpuDevice lost{"GPU-c", "", 0, 0, false};
  lost.memory_known = lost.uses_known = false;
  lost.lost = true;
  lost.trouble = "GPU is lost\xff";
  answer.view.devices.push_back(lost);
  answer.view.unreachable = {"GPU number 3: GPU is lost (15)"};
  auto read = HelperAnswer::Decode(answer.Encode());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->id, 9u);
  EXPECT_TRUE(absl::IsResourceExhausted(read->status));
  EXPECT_EQ(ErrnoOf(read->status), ENOSPC);
  EXPECT_EQ(read->driver_version, 13000);
  EXPECT_EQ(read->driver, "580.95.05");
  EXPECT_EQ(read->state, ProcessState::kCheckpointed);
  ASSERT_EQ(read->view.devices.size(), 3u);
  EXPECT_TRUE(read->view.devices[0].memory_known && read->view.devices[0].uses_known);
  EXPECT_FALSE(read->view.devices[0].lost);
  const GpuDevice& gone = read->view.devices[2];
  EXPECT_FALSE(gone.memory_known || gone.uses_known);
  EXPECT_TRUE(gone.lost);
  EXPECT_EQ(gone.trouble.substr(0, 11), "GPU is lost");
  EXPECT_EQ(read->view.unreachable, answer.view.unreachable);
  EXPECT_EQ(read->view.devices[0].free_bytes, 40u);
  EXPECT_TRUE(read->view.devices[1].mig);
  ASSERT_EQ(read->view.uses.size(), 2u);
  EXPECT_EQ(read->view.uses[0].bytes, 60u);
  EXPECT_FALSE(read->view.uses[1].bytes);
}

TEST(HelperProtocol, AnOlderHelperKnowsAllOfEachGpu) {
  const auto read = HelperAnswer::Decode(
      R"({"id":1,"code":0,"message":"","devices":[{"uuid":"a","model":"m","total":9,"free":4,"mig":false}]})");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->view.devices.size(), 1u);
  EXPECT_TRUE(read->view.devices[0].memory_known && read->view.devices[0].uses_known);
  EXPECT_FALSE(read->view.devices[0].lost);
}

TEST(HelperProtocol, WhatDoesNotFitIntoOnePacketGoesIntoSeveral) {
  HelperAnswer answer;
  answer.id = 9;
  const std::string uuid = "GPU-11111111-1111-4111-8111-111111111111";
  answer.view.devices = {{uuid, "NVIDIA H200", UINT64_MAX, UINT64_MAX, false}};
  for (pid_t pid = 4000000; pid < 4005000; ++pid) answer.view.uses.push_back({pid, uuid, UINT64_MAX});
  size_t devices = 0, uses = 0;
  const std::vector<std::string> packets = answer.Packets();
  EXPECT_GT(packets.size(), 1u);
  for (const std::string& packet : packets) {
    EXPECT_LT(packet.size(), kMaxPacketBytes / 2);
    const auto part = HelperAnswer::Decode(packet);
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->id, 9u);
    EXPECT_EQ(part->more, &packet != &packets.back());
    devices += part->view.devices.size();
    for (const GpuUse& use : part->view.uses) EXPECT_EQ(use.pid, answer.view.uses[uses++].pid);
  }
  EXPECT_EQ(devices, 1u);
  EXPECT_EQ(uses, answer.view.uses.size());
}

TEST(HelperProtocol, RefusesWhatMakesNoSense) {
  for (const char* packet :
       {"", "{", "[]", "{}", R"({"id":1,"do":"dance"})", R"({"id":1,"do":"act","pid":1,"action":"jump"})",
        R"({"id":"x","do":"state","pid":1})", R"({"id":1,"do":"act","pid":1})"}) {
    EXPECT_FALSE(HelperRequest::Decode(packet).ok()) << packet;
    EXPECT_FALSE(HelperAnswer::Decode(packet).ok()) << packet;
  }
}

}  // namespace
}  // namespace rekindle::gpu
