// Of which moment an image is, with a real CRIU and a real store.
#include <memory>
#include <string>

#include "base/clock.h"
#include "ckpt/capture.h"
#include "criu/test_support.h"
#include "dedup_store/store_testing.h"
#include "gtest/gtest.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::ckpt {
namespace {

using store::StatusOf;

class CaptureMomentTest : public store::StoreTest {};

// While it still stands still, and before anybody does anything with what was copied.
class NotesWhenFrozen : public CaptureGate {
 public:
  absl::Status BeforeFreeze() override {
    before_unix_ns = UnixNanos();
    return absl::OkStatus();
  }
  absl::Status OnFrozen() override {
    frozen_unix_ns = UnixNanos();
    return absl::OkStatus();
  }
  absl::Status BeforeCommit() override { return absl::OkStatus(); }

  int64_t before_unix_ns = 0, frozen_unix_ns = 0;
};

TEST_F(CaptureMomentTest, ItIsThatAtWhichTheJobStoodStill) {
  Reopen();
  const auto criu = criu::FindCriu();
  ASSERT_TRUE(criu.ok()) << criu.status();
  criu::TestJob job;
  ASSERT_TRUE(job.GoesOn());
  NotesWhenFrozen gate;
  CaptureOptions options;
  options.pid = job.pid();
  options.reference = "job:1";
  options.gate = &gate;
  options.runtime_directory = job.folder() + "/run";
  options.spill_directory = folder_->path();
  const auto taken = Capture(*store_, *criu, nullptr, options, nullptr, nullptr);
  ASSERT_TRUE(taken.ok()) << taken.status();
  const auto image = store_->OpenImage("job:1");
  RK_ASSERT_OK(image);
  const auto text = (*image)->ReadBlob(v1::kJobManifestObject);
  RK_ASSERT_OK(text);
  v1::JobManifest manifest;
  ASSERT_TRUE(manifest.ParseFromString(*text));
  EXPECT_GE(manifest.captured_unix_ns(), gate.before_unix_ns);
  EXPECT_LE(manifest.captured_unix_ns(), gate.frozen_unix_ns) << "the job has run on since";
}

}  // namespace
}  // namespace rekindle::ckpt
