// Fails every single I/O operation of what changes a store in turn, in every way that faulty_disk.h knows: as
// errors that the store must survive, and as losses of power.

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "dedup_store/fault_count.h"
#include "dedup_store/faulty_disk.h"
#include "dedup_store/place_step.h"
#include "dedup_store/store_files.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

class StoreFaultTest : public DamagedManyTimesTest {
 protected:
  void SetUp() override {
    DamagedManyTimesTest::SetUp();
    base_.objects["m"][0] = MakePages(20, 1) + MakePages(10, 2, Content::kText);
    base_.blobs["b"] = "base";
    next_ = base_;
    next_.objects["m"][0].replace(4 * kPageSize, 10 * kPageSize, MakePages(10, 3));
    next_.objects["n"][0x1000] = base_.objects["m"][0].substr(kPageSize, 5 * kPageSize);
    next_.blobs["b"] = "next";
    Reopen();
  }

  // What a fault left, as the check of one action sees it.
  struct Left {
    bool done = false;     // what the action said
    bool certain = false;  // that it did nothing unless it said so
  };
  using Action = std::function<absl::Status(Store&)>;
  using Check = std::function<void(const Left&)>;

  // Runs `run` on the store's files as they are, once for each operation that it does, and fails that one.
  // Then `check` looks at the store through sound I/O, before and after a gc.
  void FailEachOf(const std::function<absl::Status(FaultyDisk&, const StoreOptions&)>& run,
                  const Check& check) {
    store_.reset();
    const StoreFiles files = SaveStore(options_.path);
    for (Fault fault : kAllFaults) {
      bool hit = true;
      // Other ones for each fault, where some are passed over.
      for (int fail_at = 1 + static_cast<int>(fault) % kPlaceStep; hit; fail_at += kPlaceStep) {
        SCOPED_TRACE(absl::StrCat(FaultName(fault), " at operation ", fail_at));
        RestoreStore(options_.path, files);
        FaultyDisk disk(fault, fail_at);
        StoreOptions faulty = options_;
        faulty.io = &disk;
        faulty.worker_threads = 1;
        const absl::Status status = run(disk, faulty);
        hit = disk.was_hit();
        if (hit) count_.Add(fault);
        disk.PowerUp();
        const Left left{status.ok(), LivesOn(fault)};
        const bool harmless = !hit || fault == Fault::kDelay;
        EXPECT_TRUE(status.ok() || !harmless) << status;
        ExpectSound(left, check);
        if (HasFailure()) {
          ADD_FAILURE() << "the action said: " << status;
          return;
        }
        // A queue's writes are few, everything else is not.
        EXPECT_TRUE(hit || fail_at > 5 || fault == Fault::kDelay || fault == Fault::kShortWrite ||
                    fault == Fault::kTears);
      }
    }
  }
  void FailEach(const Action& action, const Check& check) {
    FailEachOf(
        [&](FaultyDisk&, const StoreOptions& faulty) {
          auto store = Store::Open(faulty);
          return store.ok() ? action(**store) : store.status();
        },
        check);
  }

  virtual void ExpectSound(const Left& left, const Check& check) {
    Reopen();
    if (HasFatalFailure()) return;
    check(left);
    ExpectWhole();
    RK_ASSERT_OK(store_->Gc({}));
    check(left);
    EXPECT_TRUE(ListDirectory(options_.path + "/tmp")->empty());
    EXPECT_EQ(ListDirectory(options_.path + "/packs")->size(), store_->Stats()->packs);
    store_.reset();
  }

  // `image` is there whole when it was `done`, and only if it may be.
  void ExpectAllOrNothing(const Left& left, const TestImage& image, const std::string& reference) {
    const bool visible = store_->Find(reference).ok();
    EXPECT_TRUE(visible || !left.done) << reference;
    EXPECT_TRUE(!visible || left.done || !left.certain) << reference << " is visible without a commit";
    if (visible) image.ExpectIn(*store_, reference);
  }

  TestImage base_, next_;
  FaultCount count_;
};

TEST_F(StoreFaultTest, CommitIsAllOrNothing) {
  RK_ASSERT_OK(base_.Commit(*store_, "job:1"));
  FailEach([&](Store& store) { return next_.Commit(store, "job:2", "job:1").status(); },
           [&](const Left& left) {
             base_.ExpectIn(*store_, "job:1");
             ExpectAllOrNothing(left, next_, "job:2");
           });
}

TEST_F(StoreFaultTest, ACommitThatMergesTheIndexIsAllOrNothing) {
  RK_ASSERT_OK(base_.Commit(*store_, "job:1"));
  for (int i = 0; i < 7; ++i) {
    TestImage small;
    small.objects["m"][0] = MakePages(3, 50 + i);
    RK_ASSERT_OK(small.Commit(*store_, absl::StrCat("small:", i)));
  }
  FailEach([&](Store& store) { return next_.Commit(store, "job:2", "job:1").status(); },
           [&](const Left& left) {
             base_.ExpectIn(*store_, "job:1");
             ExpectAllOrNothing(left, next_, "job:2");
           });
}

TEST_F(StoreFaultTest, ReplacingIsAllOrNothing) {
  RK_ASSERT_OK(base_.Commit(*store_, "job:1"));
  const std::string old_digest = store_->Find("job:1")->digest;
  FailEach([&](Store& store) { return next_.Commit(store, "job:1", "job:1", true).status(); },
           [&](const Left& left) {
             auto found = store_->Find("job:1");
             RK_ASSERT_OK(found);
             const bool replaced = found->digest != old_digest;
             EXPECT_TRUE(replaced || !left.done);
             EXPECT_TRUE(!replaced || left.done || !left.certain);
             (replaced ? next_ : base_).ExpectIn(*store_, "job:1");
             EXPECT_EQ(store_->List()->size(), 1u);
           });
}

TEST_F(StoreFaultTest, PreparingIsAllOrNothing) {
  NewImageOptions prepared = Named("job:1");
  prepared.prepared_id = "g1";
  FailEach([&](Store& store) { return next_.Commit(store, prepared).status(); },
           [&](const Left& left) {
             EXPECT_TRUE(store_->List()->empty());
             const bool there = !store_->ListPrepared()->empty();
             EXPECT_TRUE(there || !left.done);
             EXPECT_TRUE(!there || left.done || !left.certain);
           });
}

TEST_F(StoreFaultTest, PublishingIsAllOrNothing) {
  RK_ASSERT_OK(base_.Commit(*store_, "job:1"));
  NewImageOptions prepared = Named("job:1");
  prepared.prepared_id = "g1";
  prepared.replace = true;
  RK_ASSERT_OK(next_.Commit(*store_, prepared));
  FailEach([&](Store& store) { return store.PublishPrepared("g1").status(); },
           [&](const Left& left) {
             const bool published = store_->ListPrepared()->empty();
             EXPECT_TRUE(published || !left.done);
             EXPECT_TRUE(!published || left.done || !left.certain);
             (published ? next_ : base_).ExpectIn(*store_, "job:1");
             EXPECT_EQ(store_->List()->size(), 1u);
           });
}

TEST_F(StoreFaultTest, RemoveIsAllOrNothing) {
  RK_ASSERT_OK(base_.Commit(*store_, "job:1"));
  RK_ASSERT_OK(next_.Commit(*store_, "job:2", "job:1"));
  FailEach([&](Store& store) { return store.Remove("job:1"); },
           [&](const Left& left) {
             next_.ExpectIn(*store_, "job:2");
             const bool there = store_->Find("job:1").ok();
             EXPECT_TRUE(!there || !left.done);
             EXPECT_TRUE(there || left.done || !left.certain);
             if (there) base_.ExpectIn(*store_, "job:1");
           });
}

TEST_F(StoreFaultTest, GcLosesNothing) {
  TestImage gone;
  gone.objects["m"][0] = MakePages(15, 77);
  RK_ASSERT_OK(base_.Commit(*store_, "job:1"));
  RK_ASSERT_OK(next_.Commit(*store_, "job:2", "job:1"));
  RK_ASSERT_OK(gone.Commit(*store_, "gone"));
  RK_ASSERT_OK(store_->Remove("job:1"));
  RK_ASSERT_OK(store_->Remove("gone"));
  GcReport last;
  FailEach(
      [&](Store& store) {
        auto report = store.Gc({});
        if (report.ok()) last = *report;
        return report.status();
      },
      [&](const Left&) {
        next_.ExpectIn(*store_, "job:2");
        EXPECT_EQ(store_->List()->size(), 1u);
      });
  EXPECT_EQ(last.packs_removed, 1u);
  EXPECT_EQ(last.packs_rewritten, 1u);
}

TEST_F(StoreFaultTest, ANoteIsTheOldOneOrTheNewOne) {
  auto image = base_.Commit(*store_, "job:1");
  RK_ASSERT_OK(image);
  RK_ASSERT_OK(store_->PutNote(*image, kWorkingSetNote, "old"));
  FailEach([&](Store& store) { return store.PutNote(*image, kWorkingSetNote, MakePages(3, 5)); },
           [&](const Left& left) {
             auto note = store_->GetNote(image->digest, kWorkingSetNote);
             RK_ASSERT_OK(note);
             EXPECT_TRUE(*note == MakePages(3, 5) || (*note == "old" && !left.done));
             base_.ExpectIn(*store_, "job:1");
           });
}

TEST_F(StoreFaultTest, AnImageWithANoteGoesAllOrNotAtAll) {
  auto image = base_.Commit(*store_, "job:1");
  RK_ASSERT_OK(image);
  RK_ASSERT_OK(store_->PutNote(*image, kWorkingSetNote, "note"));
  FailEach([&](Store& store) { return store.Remove("job:1"); },
           [&](const Left& left) {
             const bool there = store_->Find("job:1").ok();
             EXPECT_TRUE(!there || !left.done);
             EXPECT_TRUE(there || left.done || !left.certain);
             if (there) base_.ExpectIn(*store_, "job:1");
             auto note = store_->GetNote(image->digest, kWorkingSetNote);
             EXPECT_TRUE(absl::IsNotFound(note.status()) || (there && *note == "note")) << note.status();
           });
}

// Of a store whose catalog is lost the check, too, has to make it again.
class StoreRebuildFaultTest : public StoreFaultTest {
 protected:
  void ExpectSound(const Left& left, const Check& check) override {
    options_.rebuild_catalog = !left.done;
    Reopen();
    options_.rebuild_catalog = false;
    if (HasFatalFailure()) return;
    check(left);
    auto report = store_->Fsck({});
    RK_ASSERT_OK(report);
    EXPECT_TRUE(report->lost_images.empty());
    for (const std::string& problem : report->problems) {
      EXPECT_TRUE(absl::StrContains(problem, "made again from the packs") ||
                  absl::StrContains(problem, "nothing is lost: the other copy has it"))
          << problem;
    }
    RK_ASSERT_OK(Repair());
    StoreFaultTest::ExpectSound(left, check);
    options_.rebuild_catalog = true;  // for the next round
  }
};

TEST_F(StoreRebuildFaultTest, MakingTheCatalogAgainLosesNothing) {
  RK_ASSERT_OK(base_.Commit(*store_, "job:1"));
  RK_ASSERT_OK(next_.Commit(*store_, "job:2", "job:1"));
  store_.reset();
  for (const char* copy : {"a", "b"}) {
    RK_ASSERT_OK(RemoveTree(absl::StrCat(options_.path, "/catalog/0000000000000001.", copy)));
  }
  options_.rebuild_catalog = true;
  FailEach(
      [&](Store& store) {
        FsckOptions options;
        options.read_data = options.repair = true;
        return store.Fsck(options).status();
      },
      [&](const Left&) {
        base_.ExpectIn(*store_, "job:1");
        next_.ExpectIn(*store_, "job:2");
        EXPECT_EQ(store_->List()->size(), 2u);
      });
}

// Two images with pages in common, committed at the same time by two threads whose turns are set so that each
// page is claimed by a certain one.
class StoreRaceFaultTest : public StoreFaultTest {
 protected:
  struct Committer {
    std::string reference;
    // In the order in which they are stored; the claims of the first are made before the other goes on.
    std::vector<std::string> objects;
    absl::Notification claimed;
    absl::StatusOr<ImageInfo> result = absl::UnknownError("not run");

    TestImage image() const {
      TestImage image;
      for (size_t i = 0; i < objects.size(); ++i) image.objects[absl::StrCat("m", i)][0] = objects[i];
      return image;
    }
    void Claimed() {
      if (!claimed.HasBeenNotified()) claimed.Notify();
    }
  };

  static absl::StatusOr<ImageInfo> Commit(Store& store, Committer& self, Committer& other) {
    RK_ASSIGN_OR_RETURN(std::unique_ptr<ImageWriter> writer, store.NewImage(Named(self.reference)));
    for (size_t i = 0; i < self.objects.size(); ++i) {
      const std::string& pages = self.objects[i];
      RK_RETURN_IF_ERROR(writer->AddPages(absl::StrCat("m", i), 0,
                                          {reinterpret_cast<const std::byte*>(pages.data()), pages.size()}));
    }
    return writer->Commit([&](uint64_t, uint64_t) {
      self.Claimed();
      other.claimed.WaitForNotification();
      return true;
    });
  }

  // `after_a`: b begins when a has made its first claims. Fails each operation of one of the two.
  void FailEachOfBoth(const std::vector<std::string>& a_objects, const std::vector<std::string>& b_objects,
                      bool after_a, size_t packs) {
    RK_ASSERT_OK(base_.Commit(*store_, "job:1"));
    for (int victim : {0, 1}) {
      SCOPED_TRACE(victim == 0 ? "of a" : "of b");
      std::unique_ptr<Committer> a, b;
      size_t packs_at_the_end = 0;
      auto run = [&](FaultyDisk& disk, const StoreOptions& faulty) -> absl::Status {
        a = std::make_unique<Committer>();
        b = std::make_unique<Committer>();
        a->reference = "a:latest";
        a->objects = a_objects;
        b->reference = "b:latest";
        b->objects = b_objects;
        {
          // A store that does not open is for the other tests.
          auto store = Store::Open(faulty);
          RK_RETURN_IF_ERROR(store.status());
          std::thread thread([&] {
            if (victim == 1) disk.WatchThisThread();
            if (after_a) a->claimed.WaitForNotification();
            b->result = Commit(**store, *b, *a);
            b->Claimed();
          });
          if (victim == 0) disk.WatchThisThread();
          a->result = Commit(**store, *a, *b);
          a->Claimed();
          thread.join();
          packs_at_the_end = ListDirectory(options_.path + "/packs")->size();
        }
        return (victim == 0 ? a : b)->result.status();
      };
      FailEachOf(run, [&](const Left& left) {
        base_.ExpectIn(*store_, "job:1");
        for (Committer* c : {a.get(), b.get()}) {
          ExpectAllOrNothing({c->result.ok(), left.certain}, c->image(), c->reference);
        }
      });
      if (HasFailure()) return;
      // The last round was without a fault: each page was stored once, in the packs that were wanted for it.
      EXPECT_EQ(packs_at_the_end, packs);
      EXPECT_EQ(a->result->stats.new_bytes + b->result->stats.new_bytes, new_pages_ * kPageSize);
      if (victim == 0) {
        Reopen();
        for (Committer* c : {a.get(), b.get()}) RK_ASSERT_OK(store_->Remove(c->reference));
        RK_ASSERT_OK(store_->Gc({}));
      }
    }
  }

  size_t new_pages_ = 0;
};

TEST_F(StoreRaceFaultTest, OneThatWaitsForAnotherIsAllOrNothing) {
  const std::string common = MakePages(6, 10);
  new_pages_ = 6 + 3 + 4;
  // a: its pack. b: one for its own pages, one for what comes after it waited.
  FailEachOfBoth({common + MakePages(3, 11)}, {MakePages(4, 12) + common}, true, 1 + 1 + 2);
}

TEST_F(StoreRaceFaultTest, TwoThatWaitForEachOtherAreAllOrNothing) {
  const std::string x = MakePages(5, 20), y = MakePages(4, 21, Content::kText);
  new_pages_ = 5 + 4;
  FailEachOfBoth({x, y}, {y, x}, false, 1 + 2 + 2);
}

}  // namespace
}  // namespace rekindle::store
