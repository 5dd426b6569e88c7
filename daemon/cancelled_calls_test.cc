// Calls whose client has gone do no work: it could be long, and the daemon's end would wait for it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/file.h"
#include "base/pidfd.h"
#include "base/unique_fd.h"
#include "daemon/rpcs.h"
#include "daemon/test_node.h"
#include "dedup_store/store_testing.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::store {
namespace {

class CancelledCallsTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    v1::JobManifest manifest;
    manifest.set_criu_version("4.2");
    TestImage image;
    image.objects["mem/1"][0] = MakePages(100, 1);
    image.blobs[v1::kJobManifestObject] = manifest.SerializeAsString();
    image.blobs[absl::StrCat(v1::kCriuFilePrefix, "inventory.img")] = "an inventory";
    RK_ASSERT_OK(image.Commit(*store_, "job:1"));
    image.objects["mem/1"][0] = MakePages(100, 2);
    RK_ASSERT_OK(image.Commit(*store_, "job:2"));
    daemon::NodeOptions options = daemon::TestNodeOptions(folder_->path());
    options.store = options_.path;
    node_ = std::make_unique<daemon::Node>(options);
    call_.caller.uid = ::geteuid();
    call_.cancelled = [] { return true; };
  }

  std::unique_ptr<daemon::Node> node_;
  daemon::Call call_;
};

TEST_F(CancelledCallsTest, Gc) {
  v1::CollectGarbageResponse response;
  EXPECT_TRUE(absl::IsCancelled(daemon::CollectGarbage(*node_, call_, {}, &response)));
}

TEST_F(CancelledCallsTest, Prune) {
  v1::PruneImagesRequest request;
  request.set_all(true);
  request.set_keep_last(1);
  v1::PruneImagesResponse response;
  EXPECT_TRUE(absl::IsCancelled(daemon::PruneImages(*node_, call_, request, &response)));
  EXPECT_EQ(store_->List()->size(), 2u);
}

TEST_F(CancelledCallsTest, Remove) {
  v1::RemoveImagesRequest request;
  request.add_images("job:1");
  v1::RemoveImagesResponse response;
  EXPECT_TRUE(absl::IsCancelled(daemon::RemoveImages(*node_, call_, request, &response)));
  EXPECT_EQ(store_->List()->size(), 2u);
}

TEST_F(CancelledCallsTest, GcAfterPruning) {
  call_.cancelled = [asked = 0]() mutable { return asked++ > 0; };  // not while it prunes
  v1::PruneImagesRequest request;
  request.set_all(true);
  request.set_keep_last(1);
  request.set_collect_garbage(true);
  v1::PruneImagesResponse response;
  EXPECT_TRUE(absl::IsCancelled(daemon::PruneImages(*node_, call_, request, &response)));
  EXPECT_EQ(store_->List()->size(), 1u);
}

TEST_F(CancelledCallsTest, Fsck) {
  v1::FsckRequest request;
  request.set_read_data(true);
  request.set_repair(true);
  EXPECT_TRUE(
      absl::IsCancelled(daemon::Fsck(*node_, call_, request, [](const v1::FsckEvent&) { return true; })));
}

TEST_F(CancelledCallsTest, Diff) {
  v1::DiffImagesRequest request;
  request.set_a("job:1");
  request.set_b("job:2");
  v1::DiffImagesResponse response;
  EXPECT_TRUE(absl::IsCancelled(daemon::DiffImages(*node_, call_, request, &response)));
}

TEST_F(CancelledCallsTest, InspectUnlessItIsOfTheImageAlone) {
  v1::InspectImageRequest request;
  request.set_image("job:1");
  v1::InspectImageResponse response;
  EXPECT_TRUE(absl::IsCancelled(daemon::InspectImage(*node_, call_, request, &response)));
  request.set_image_alone(true);
  response.Clear();
  RK_ASSERT_OK(daemon::InspectImage(*node_, call_, request, &response));
  EXPECT_EQ(response.image().reference(), "job:1");
  EXPECT_FALSE(response.has_bytes());
}

TEST_F(CancelledCallsTest, Export) {
  v1::ExportImageRequest request;
  request.set_image("job:1");
  request.set_criu_directory(folder_->path() + "/export");
  EXPECT_TRUE(absl::IsCancelled(
      daemon::ExportImage(*node_, call_, request, [](const v1::TransferEvent&) { return true; })));
  EXPECT_FALSE(PathExists(request.criu_directory()));
}

// The client goes in the moment in which it is told.
TEST_F(CancelledCallsTest, AJobOfWhichNobodyIsToldIsEndedAgain) {
  call_.cancelled = [] { return false; };
  v1::RunRequest request;
  request.add_argv("/bin/sleep");
  request.add_argv("1000");
  request.set_working_directory("/");
  request.set_detach(true);
  UniqueFd process;
  const absl::Status ran = daemon::Run(*node_, call_, request, [&](const v1::JobEvent& event) {
    auto opened = OpenProcess(event.started().job().pid());
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (opened.ok()) process = *std::move(opened);
    return false;
  });
  EXPECT_TRUE(absl::IsCancelled(ran)) << ran;
  ASSERT_TRUE(process.valid());
  EXPECT_TRUE(AwaitExit(process.get(), absl::Minutes(1)));
}

// Whoever sends invocations may turn to another daemon with it.
TEST_F(CancelledCallsTest, AnInvocationThatAnEndingDaemonDoesNotBeginIsUnavailable) {
  node_->TakeNoMoreWork();
  for (const bool async : {false, true}) {
    v1::InvokeFunctionRequest request;
    request.set_name("any");
    request.set_async(async);
    v1::InvokeFunctionResponse response;
    const absl::Status refused = daemon::InvokeFunction(*node_, call_, request, &response);
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  }
}

// It would end with the daemon.
TEST_F(CancelledCallsTest, AnEndingDaemonPutsUpNoTemplate) {
  node_->TakeNoMoreWork();
  v1::TemplateUpRequest request;
  request.set_image("job:1");
  v1::Template response;
  const absl::Status refused = daemon::TemplateUp(*node_, call_, request, &response);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
}

}  // namespace
}  // namespace rekindle::store
