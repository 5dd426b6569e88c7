// Fails every single operation of the catalog in turn, in every way that faulty_disk.h knows.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dedup_store/catalog_testing.h"
#include "dedup_store/fault_count.h"
#include "dedup_store/faulty_disk.h"
#include "dedup_store/place_step.h"

namespace rekindle::store {
namespace {

class CatalogFaultTest : public CatalogTest {
 protected:
  // Fails each operation of Open and `action` in turn, in every way, from the files as they are. `before` and
  // `after`: what the catalog holds when the action did not happen, and when it did.
  void FailEach(const std::function<absl::Status(Catalog&)>& action, const std::string& before,
                const std::string& after) {
    const Files files = Save();
    int unknown = 0;
    for (Fault fault : kAllFaults) {
      if (fault == Fault::kDelay) continue;  // the catalog waits for each write
      bool hit = true;
      // Other ones for each fault, where some are passed over.
      for (int round = 2 + static_cast<int>(fault) % kPlaceStep; hit; round += kPlaceStep) {
        const int fail_at = round / 2;
        if (round % 2 == 1 && !KeepsFiles(fault)) continue;
        SCOPED_TRACE(absl::StrCat(FaultName(fault), " at operation ", fail_at));
        Restore(files);
        // One that has the catalog open meanwhile, as in another process, and goes on from what it knows.
        std::shared_ptr<Catalog> bystander;
        if (round % 2 == 1) bystander = Open();
        FaultyDisk disk(fault, fail_at);
        absl::Status status;
        std::string seen;
        {
          auto catalog = Catalog::Open(path_, &disk);
          status = catalog.status();
          if (catalog.ok()) {
            status = action(**catalog);
            if (absl::StrContains(status.message(), "not known")) ++unknown;
            // One failure takes nothing from who goes on.
            if (LivesOn(fault)) {
              seen = NumbersIn(**catalog);
              if (absl::StrContains(seen, "injected")) seen = NumbersIn(**catalog);
              EXPECT_EQ(seen, status.ok() ? after : before);
            }
          }
        }
        hit = disk.was_hit();
        if (hit) count_.Add(fault);
        disk.PowerUp();
        auto catalog = Open();
        ASSERT_NE(catalog, nullptr);
        std::string now = NumbersIn(*catalog);
        EXPECT_TRUE(now == after || (!status.ok() && now == before)) << now << " after " << status;
        EXPECT_TRUE(seen.empty() || seen == now) << seen << " " << now;
        if (bystander) {
          RK_ASSERT_OK(PutNumbered(*bystander, 555));
          absl::StrAppend(&now, " 555");
          bystander.reset();
        }
        catalog.reset();
        ExpectMended(now);
        if (HasFailure()) return;
        EXPECT_TRUE(hit || status.ok()) << status;
      }
    }
    EXPECT_GT(unknown, 0);
  }

  FaultCount count_;
};

TEST_F(CatalogFaultTest, ACommitIsAllOrNothing) {
  RK_ASSERT_OK(PutNumbered(*Open(), 1));
  FailEach([](Catalog& catalog) { return PutNumbered(catalog, 2); }, "1", "1 2");
}

TEST_F(CatalogFaultTest, ACommitOfSeveralSectorsIsAllOrNothing) {
  RK_ASSERT_OK(PutNumbered(*Open(), 1));
  FailEach([](Catalog& catalog) { return PutNumbered(catalog, 77); }, "1", "1 77");
}

TEST_F(CatalogFaultTest, WritingTheLogAnewLosesNothing) {
  {
    auto catalog = Open();
    RK_ASSERT_OK(PutNumbered(*catalog, 1));
    while (catalog->Read()->bytes_used() / 2 < (256 << 10) - 60000) RK_ASSERT_OK(PutBulk(*catalog, 50000));
  }
  EXPECT_EQ(Save().count(kA), 1u);
  auto action = [](Catalog& catalog) -> absl::Status {
    // Enough for the log to be written anew in between.
    RK_RETURN_IF_ERROR(PutBulk(catalog, 65000));
    return PutNumbered(catalog, 2);
  };
  FailEach(action, "1", "1 2");
  EXPECT_EQ(Save().count(kA), 0u);
}

TEST_F(CatalogFaultTest, HealingLosesNothing) {
  {
    auto catalog = Open();
    RK_ASSERT_OK(PutNumbered(*catalog, 1));
    RK_ASSERT_OK(PutNumbered(*catalog, 2));
  }
  const Files files = Save();
  for (const char* name : {kA, kB}) {
    for (bool missing : {true, false}) {
      SCOPED_TRACE(absl::StrCat(name, missing ? " is missing" : " is damaged"));
      Files damaged = files;
      damaged[name][300] ^= 1;
      if (missing) damaged.erase(name);
      Restore(damaged);
      FailEach([](Catalog& catalog) { return PutNumbered(catalog, 3); }, "1 2", "1 2 3");
    }
  }
}

// Somebody replaces a damaged log and dies at it; who opened the old log before that writes on.
TEST_F(CatalogFaultTest, NobodyWritesOnInALogThatWasReplaced) {
  {
    auto catalog = Open();
    RK_ASSERT_OK(PutNumbered(*catalog, 1));
    RK_ASSERT_OK(PutNumbered(*catalog, 2));
  }
  const Files files = Save();
  bool hit = true;
  for (int fail_at = 1; hit; ++fail_at) {
    SCOPED_TRACE(fail_at);
    Restore(files);
    auto bystander = Open();
    const char flipped = static_cast<char>(files.at(kB)[300] ^ 1);
    int fd = open((path_ + "/" + kB).c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_EQ(pwrite(fd, &flipped, 1, 300), 1);
    close(fd);
    FaultyDisk disk(Fault::kKill, fail_at);
    if (auto catalog = Catalog::Open(path_, &disk); catalog.ok()) (void)PutNumbered(**catalog, 3);
    hit = disk.was_hit();
    if (hit) count_.Add(Fault::kKill);
    const std::string expected = NumbersIn(*bystander) + " 555";
    RK_ASSERT_OK(PutNumbered(*bystander, 555));
    EXPECT_EQ(NumbersIn(*bystander), expected);
    bystander.reset();
    EXPECT_EQ(NumbersIn(*Open()), expected);
    ExpectMended(expected);
    if (HasFailure()) return;
  }
}

TEST_F(CatalogFaultTest, MakingOneIsAllOrNothing) {
  for (Fault fault : kAllFaults) {
    if (fault == Fault::kDelay) continue;
    bool hit = true;
    for (int fail_at = 1; hit; ++fail_at) {
      SCOPED_TRACE(absl::StrCat(FaultName(fault), " at operation ", fail_at));
      Restore({});
      FaultyDisk disk(fault, fail_at);
      absl::Status status = Catalog::Create(path_, &disk);
      hit = disk.was_hit();
      if (hit) count_.Add(fault);
      disk.PowerUp();
      if (!status.ok()) RK_ASSERT_OK(Catalog::Create(path_, RealBlockIo()));
      ExpectSound("");
      ExpectMended("");
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace rekindle::store
