#include "daemon/stalled_reader.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "daemon/grpc_service.h"
#include "daemon/rpcs.h"
#include "dedup_store/store_testing.h"
#include "rekindle/v1/rekindle.grpc.pb.h"

namespace rekindle::store {
namespace {

using daemon::StalledReader;

// Nobody waits so long who is not stuck.
constexpr absl::Duration kForEver = absl::Minutes(1);

TEST(StalledReaderTest, OneSendThatTakesTooLongIsGivenUp) {
  absl::Notification given_up;
  StalledReader reader(absl::Milliseconds(1), [&] { given_up.Notify(); });
  const StalledReader::Sending sending(reader);
  ASSERT_TRUE(given_up.WaitForNotificationWithTimeout(kForEver));
  EXPECT_TRUE(reader.given_up());
}

TEST(StalledReaderTest, ManyShortOnesAreNot) {
  StalledReader reader(kForEver, [] { FAIL() << "it was given up"; });
  for (int i = 0; i < 1000; ++i) const StalledReader::Sending sending(reader);
  EXPECT_FALSE(reader.given_up());
}

class SendToStalledReaderTest : public StoreTest {};

TEST_F(SendToStalledReaderTest, EndsAndLetsGoOfTheImage) {
  Reopen();
  TestImage image;
  image.objects["mem/1"][0] = MakePages(1000, 1);
  RK_ASSERT_OK(image.Commit(*store_, "job:1"));
  daemon::NodeOptions options;
  options.store = options_.path;
  options.runtime_directory = folder_->path() + "/run";
  options.log_directory = folder_->path() + "/log";
  options.reader_patience = absl::Milliseconds(1);
  daemon::Node node(options);
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
TEST_F(SendToStalledReaderTest, OverTheWire) {
  Reopen();
  TestImage image;
  image.objects["mem/1"][0] = MakePages(16'000, 1);  // more than is under way at once
  RK_ASSERT_OK(image.Commit(*store_, "job:1"));
  daemon::NodeOptions options;
  options.store = options_.path;
  options.runtime_directory = folder_->path() + "/run";
  options.log_directory = folder_->path() + "/log";
  options.reader_patience = absl::Milliseconds(100);
  daemon::Node node(options);
  const auto service = daemon::MakeGrpcService(node, [](const daemon::Peer&) { return daemon::Caller(); });
  const std::string address = "unix:" + folder_->path() + "/socket";
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(service.get());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const auto stub = v1::Rekindle::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::SendImageRequest request;
  request.set_image("job:1");
  const auto reader = stub->SendImage(&context, request);
  v1::SendImageEvent event;
  ASSERT_TRUE(reader->Read(&event));
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

}  // namespace
}  // namespace rekindle::store
