#include "daemon/call_monitor.h"

#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "daemon/sending_thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::daemon {
namespace {

using ::testing::ElementsAre;

// A client that reads nothing: what is sent to it waits until it is given up.
class UnreadingClient {
 public:
  Call MakeCall() {
    Call call;
    call.abandon = [this] {
      ++given_up_;
      gone_.Notify();
    };
    return call;
  }
  bool Take() {
    if (!took_.HasBeenNotified()) took_.Notify();
    gone_.WaitForNotification();
    return false;
  }
  void AwaitSend() { took_.WaitForNotification(); }
  int given_up() const { return given_up_; }

 private:
  absl::Notification took_, gone_;
  int given_up_ = 0;
};

TEST(CallMonitorTest, AClientThatReadsNothingIsGivenUpWhenTheWorkIsDone) {
  UnreadingClient client;
  const Call call = client.MakeCall();
  CallMonitor monitor(
      call, [&](const v1::Progress&) { return client.Take(); }, absl::Milliseconds(10));
  monitor.Report("copy", 1, 2, 0.1);
  client.AwaitSend();
  monitor.Report("copy", 2, 2, 0.2);
  EXPECT_EQ(client.given_up(), 0) << "it may take its time";
  monitor.Stop();
  EXPECT_EQ(client.given_up(), 1);
}

TEST(SendingThreadTest, WhatIsSentIsNotWaitedForAndComesInOrder) {
  absl::Notification reads;
  std::vector<std::string> got;
  const EventSink<std::string> send = [&](const std::string& event) {
    reads.WaitForNotification();
    got.push_back(event);
    return true;
  };
  SendingThread<std::string> sender(send, nullptr);
  sender.Send("ready");
  sender.Send("running");
  reads.Notify();
  sender.Finish();
  EXPECT_THAT(got, ElementsAre("ready", "running"));
}

TEST(SendingThreadTest, AClientThatReadsNothingIsGivenUpAtTheEnd) {
  UnreadingClient client;
  const EventSink<std::string> send = [&](const std::string&) { return client.Take(); };
  SendingThread<std::string> sender(send, client.MakeCall().abandon, absl::Milliseconds(10));
  sender.Send("ready");
  client.AwaitSend();
  EXPECT_EQ(client.given_up(), 0);
  sender.Finish();
  EXPECT_EQ(client.given_up(), 1);
}

}  // namespace
}  // namespace rekindle::daemon
