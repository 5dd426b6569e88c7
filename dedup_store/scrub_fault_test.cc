// An operation of the scrub fails, each in turn: nothing is taken for damage, and nothing is passed over.
#include <gtest/gtest.h>

#include "base/log.h"
#include "dedup_store/faulty_disk.h"
#include "dedup_store/scrub.h"
#include "dedup_store/store_files.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

class ScrubFaultTest : public DamagedManyTimesTest {};

TEST_F(ScrubFaultTest, AnErrorTellsNothingOfTheData) {
  Reopen();
  TestImage image;
  image.objects["mem/1"][0] = MakePages(600, 1) + MakePages(40, 2, Content::kText);
  image.blobs["files"] = "a small one";
  RK_ASSERT_OK(image.Commit(*store_, "job:1"));
  image.objects["mem/1"][0] += MakePages(3, 3);
  RK_ASSERT_OK(image.Commit(*store_, "job:2", "job:1"));

  uint64_t bytes = 0;
  int faults = 0;
  for (bool hit = true; hit; ++faults) {
    store_.reset();
    FaultyDisk disk(Fault::kError, faults + 1);
    StoreOptions options = options_;
    options.io = &disk;
    auto store = Store::Open(options);
    int errors = store.ok() ? 0 : 1;
    if (!store.ok()) store = Store::Open(options);
    RK_ASSERT_OK(store);
    {
      auto scrub = NewScrub(**store);
      RK_ASSERT_OK(scrub);
      for (bool ended = false; !ended;) {
        auto step = (*scrub)->Next();
        errors += step.ok() ? 0 : 1;
        ASSERT_LE(errors, 1) << step.status();
        if (!step.ok()) continue;
        // The catalog has two copies, so this is no error.
        errors += step->catalog_problems.empty() ? 0 : 1;
        EXPECT_TRUE(step->found.empty()) << step->found.front().why;
        ended = step->pass_ended;
      }
      // What was read of a step that failed is read again, and counted once.
      if (bytes == 0) bytes = (*scrub)->state().last_bytes;
      EXPECT_EQ((*scrub)->state().last_bytes, bytes) << "fault " << faults;
    }
    hit = disk.was_hit();
    EXPECT_EQ(errors, hit ? 1 : 0) << "fault " << faults;
  }
  EXPECT_GT(faults, 15);
}

}  // namespace
}  // namespace rekindle::store
