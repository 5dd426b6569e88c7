#include "daemon/stalled_stream.h"

#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "daemon/grpc_service.h"
#include "daemon/named_calls.h"
#include "daemon/rpcs.h"
#include "daemon/test_node.h"
#include "dedup_store/store_testing.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/rekindle.grpc.pb.h"

namespace rekindle::store {
namespace {

using daemon::StalledStream;

// Nobody waits so long who is not stuck.
constexpr absl::Duration kForEver = absl::Minutes(1);

TEST(StalledStreamTest, OneSendThatTakesTooLongIsGivenUp) {
  absl::Notification given_up;
  StalledStream reader(absl::Milliseconds(1), [&] { given_up.Notify(); });
  const StalledStream::Waiting sending(reader);
  ASSERT_TRUE(given_up.WaitForNotificationWithTimeout(kForEver));
  EXPECT_TRUE(reader.given_up());
}

TEST(StalledStreamTest, ManyShortOnesAreNot) {
  StalledStream reader(kForEver, [] { FAIL() << "it was given up"; });
  for (int i = 0; i < 1000; ++i) const StalledStream::Waiting sending(reader);
  EXPECT_FALSE(reader.given_up());
}

// A node over the store, and its service at a socket.
class TransferTest : public StoreTest {
 protected:
  void UseNode(absl::Duration patience) {
    node_options_ = daemon::TestNodeOptions(folder_->path());
    node_options_.store = options_.path;
    node_options_.stream_patience = patience;
  }

  class Served {
   public:
    Served(daemon::Node& node, const std::string& address)
        : service_(daemon::MakeGrpcService(
              node,
              [](const daemon::Peer&) {
                daemon::Caller caller;
                caller.uid = ::geteuid();
                return caller;
              },
              nullptr, calls_)) {
      grpc::ServerBuilder builder;
      builder.AddListeningPort(address, grpc::InsecureServerCredentials());
      builder.RegisterService(service_.get());
      server_ = builder.BuildAndStart();
      stub_ = v1::Rekindle::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    }
    bool ok() const { return server_ != nullptr; }
    v1::Rekindle::Stub& stub() { return *stub_; }
    void Shutdown() { server_->Shutdown(); }
    daemon::NamedCalls& calls() { return *calls_; }

   private:
    const std::shared_ptr<daemon::NamedCalls> calls_ = std::make_shared<daemon::NamedCalls>();
    const std::shared_ptr<grpc::Service> service_;
    std::unique_ptr<grpc::Server> server_;
    std::unique_ptr<v1::Rekindle::Stub> stub_;
  };

  std::string Address() const { return "unix:" + folder_->path() + "/socket"; }

  daemon::NodeOptions node_options_;
};

class SendToStalledStreamTest : public TransferTest {};

TEST_F(SendToStalledStreamTest, EndsAndLetsGoOfTheImage) {
  Reopen();
  TestImage image;
  image.objects["mem/1"][0] = MakePages(1000, 1);
  RK_ASSERT_OK(image.Commit(*store_, "job:1"));
  UseNode(absl::Milliseconds(1));
  daemon::Node node(node_options_);
  absl::Notification abandoned;
  daemon::Call call;
  call.caller.uid = ::geteuid();
  call.cancelled = [&] { return abandoned.HasBeenNotified(); };
  call.abandon = [&] { abandoned.Notify(); };
  v1::SendImageRequest request;
  request.set_image("job:1");
  const absl::Status sent = daemon::SendImage(node, call, request, [&](const v1::SendImageEvent&) {
    abandoned.WaitForNotificationWithTimeout(kForEver);
    return false;
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(sent)) << sent;
  EXPECT_NE(sent.message().find("job:1"), std::string::npos) << sent;
  RK_ASSERT_OK(store_->Remove("job:1"));
  auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_in_use, 0u);
  EXPECT_EQ(report->packs_removed, 1u);
}

// What is called to abandon the call ends a send that waits for the client.
TEST_F(SendToStalledStreamTest, OverTheWire) {
  Reopen();
  TestImage image;
  image.objects["mem/1"][0] = MakePages(16'000, 1);  // more than is under way at once
  RK_ASSERT_OK(image.Commit(*store_, "job:1"));
  UseNode(absl::Milliseconds(100));
  daemon::Node node(node_options_);
  Served served(node, Address());
  ASSERT_TRUE(served.ok());
  grpc::ClientContext context;
  v1::SendImageRequest request;
  request.set_image("job:1");
  const auto reader = served.stub().SendImage(&context, request);
  v1::SendImageEvent event;
  (void)reader->Read(&event);  // false: it was given up already
  RK_ASSERT_OK(store_->Remove("job:1"));
  // Nobody else than who sends has its pack in use.
  const absl::Time latest = absl::Now() + kForEver;
  uint64_t removed = 0;
  while (removed == 0 && absl::Now() < latest) {
    auto report = store_->Gc({});
    RK_ASSERT_OK(report);
    removed = report->packs_removed;
  }
  EXPECT_EQ(removed, 1u);
  while (reader->Read(&event)) EXPECT_FALSE(event.has_result());
  EXPECT_FALSE(reader->Finish().ok());
}

// A store with job:1, to which job:2 is being sent: what has changed since job:1. The first half comes.
class ReceiveFromStalledSenderTest : public TransferTest {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    StoreTest::SetUp();
    Reopen();
    TestImage image;
    image.blobs[v1::kJobManifestObject] = "a job";
    image.objects["mem/1"][0] = MakePages(4000, 1);
    RK_ASSERT_OK(image.Commit(*store_, "job:1"));
    image.objects["mem/1"][0].replace(0, 3000 * kPageSize, MakePages(3000, 2));
    RK_ASSERT_OK(image.Commit(*store_, "job:2", "job:1"));
    UseNode(daemon::NodeOptions().stream_patience);
    {
      daemon::Node node(node_options_);
      daemon::Call call;
      call.caller.uid = ::geteuid();
      call.cancelled = [] { return false; };
      v1::SendImageRequest request;
      request.set_image("job:2");
      request.set_since("job:1");
      RK_ASSERT_OK(daemon::SendImage(node, call, request, [&](const v1::SendImageEvent& event) {
        sent_ += event.data();
        return true;
      }));
    }
    RK_ASSERT_OK(store_->Remove("job:2"));
    RK_ASSERT_OK(store_->Gc({}));
    node_options_.stream_patience = absl::Milliseconds(100);
  }
  void TearDown() override { SetLogLevel(LogLevel::kWarning); }

  std::string Half() const { return sent_.substr(0, sent_.size() / 2); }
  // That it came to hold something, and lets go of it.
  void ExpectNothingHeld() {
    RK_ASSERT_OK(store_->Remove("job:1"));
    auto report = store_->Gc({});
    RK_ASSERT_OK(report);
    EXPECT_EQ(report->packs_in_use, 0u);
    EXPECT_TRUE(ListDirectory(options_.path + "/packs")->empty());
  }

  std::string sent_;
};

TEST_F(ReceiveFromStalledSenderTest, EndsAndLetsGo) {
  daemon::Node node(node_options_);
  absl::Notification abandoned;
  daemon::Call call;
  call.caller.uid = ::geteuid();
  call.cancelled = [&] { return abandoned.HasBeenNotified(); };
  call.abandon = [&] { abandoned.Notify(); };
  int messages = 0;
  const absl::Status received = daemon::ReceiveImage(
      node, call,
      [&](v1::ReceiveImageRequest* message) {
        message->Clear();
        ++messages;
        if (messages == 1) message->mutable_begin()->set_reference("taken:1");
        if (messages == 2) message->set_data(Half());
        if (messages <= 2) return true;
        // What comes is stored as it comes: its pack is there, and job:1 is in use.
        EXPECT_GT(ListDirectory(options_.path + "/packs")->size(), 1u);
        EXPECT_TRUE(abandoned.WaitForNotificationWithTimeout(kForEver));
        return false;
      },
      [](const v1::ReceiveImageEvent&) { return true; });
  EXPECT_TRUE(absl::IsDeadlineExceeded(received)) << received;
  EXPECT_EQ(messages, 3);
  ExpectNothingHeld();
}

// Where nothing has come yet, nothing is held.
TEST_F(ReceiveFromStalledSenderTest, TheFirstOfItMayTakeAsLongAsItLikes) {
  daemon::Node node(node_options_);
  daemon::Call call;
  call.caller.uid = ::geteuid();
  call.cancelled = [] { return false; };
  call.abandon = [] { ADD_FAILURE() << "it was given up"; };
  int messages = 0;
  const absl::Status received = daemon::ReceiveImage(
      node, call,
      [&](v1::ReceiveImageRequest* message) {
        message->Clear();
        if (++messages > 2) return false;  // at once: for this there is no more time than the patience
        if (messages == 1) {
          message->mutable_begin()->set_reference("taken:1");
        } else {
          absl::SleepFor(3 * node_options_.stream_patience);  // is to take longer than that
          message->set_data(sent_);
        }
        return true;
      },
      [](const v1::ReceiveImageEvent&) { return true; });
  RK_ASSERT_OK(received);
  EXPECT_TRUE(store_->Find("taken:1").ok());
}

TEST_F(ReceiveFromStalledSenderTest, OverTheWire) {
  daemon::Node node(node_options_);
  Served served(node, Address());
  ASSERT_TRUE(served.ok());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kForEver));
  const auto stream = served.stub().ReceiveImage(&context);
  v1::ReceiveImageRequest message;
  message.mutable_begin()->set_reference("taken:1");
  ASSERT_TRUE(stream->Write(message));
  const std::string half = Half();
  for (size_t at = 0; at < half.size(); at += 1 << 20) {
    message.set_data(half.substr(at, 1 << 20));
    // Given up before all of this has come, it takes no more.
    if (!stream->Write(message)) break;
  }
  for (v1::ReceiveImageEvent event; stream->Read(&event);) EXPECT_FALSE(event.has_result());
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED) << status.error_message();
  served.Shutdown();
  ExpectNothingHeld();
}

class ReceiveTest : public TransferTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    UseNode(kForEver);
  }
};

TEST_F(ReceiveTest, IsGivenUpByItsName) {
  daemon::Node node(node_options_);
  Served served(node, Address());
  ASSERT_TRUE(served.ok());
  grpc::ClientContext context;
  context.AddMetadata(daemon::NamedCalls::kMetadata, "coming");
  const auto stream = served.stub().ReceiveImage(&context);
  v1::ReceiveImageRequest message;
  message.mutable_begin();
  EXPECT_TRUE(stream->Write(message));
  const absl::Time latest = absl::Now() + kForEver;
  while (!served.calls().GiveUp(::geteuid(), "coming") && absl::Now() < latest) {
  }
  stream->WritesDone();
  v1::ReceiveImageEvent event;
  while (stream->Read(&event)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// It may be what a newer client relies on.
TEST_F(ReceiveTest, WhatIsNotKnownIsRefused) {
  daemon::Node node(node_options_);
  daemon::Call call;
  call.caller.uid = ::geteuid();
  call.cancelled = [] { return false; };
  const absl::Status refused = daemon::ReceiveImage(
      node, call,
      [](v1::ReceiveImageRequest* message) {
        v1::ReceiveImageBegin* begin = message->mutable_begin();
        begin->GetReflection()->MutableUnknownFields(begin)->AddVarint(1000, 1);
        return true;
      },
      [](const v1::ReceiveImageEvent&) { return true; });
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_NE(refused.message().find("1000"), std::string::npos) << refused;
}

}  // namespace
}  // namespace rekindle::store
