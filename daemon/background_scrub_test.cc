#include "daemon/background_scrub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "daemon/doctor.h"
#include "dedup_store/store.h"

namespace rekindle::daemon {
namespace {

using Part = store::ScrubDamage::Part;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

store::ScrubDamage Chunk(uint64_t pack, uint64_t offset) {
  store::ScrubDamage damage;
  damage.pack = pack;
  damage.offset = offset;
  damage.why = "the data does not fit its digest";
  return damage;
}

TEST(DescribeDamageTest, NamesPlaceImagesCauseAndCure) {
  EXPECT_THAT(
      DescribeDamage({Chunk(0xab12, 8192)}, std::vector<std::string>{"train:1", "train:2"}),
      AllOf(HasSubstr("pack 000000000000ab12, offset 8192 (pages)"), HasSubstr("does not fit its digest"),
            HasSubstr(": train:1, train:2. "), HasSubstr("`rekindle ckpt`"),
            HasSubstr("`rekindle fsck --read --repair`"), Not(HasSubstr("more places"))));
}

TEST(DescribeDamageTest, OfMuchItTellsHowMuch) {
  const std::vector<std::string> images(50, "many:1");
  EXPECT_THAT(DescribeDamage({Chunk(1, 2), Chunk(1, 3), Chunk(1, 4)}, images),
              AllOf(HasSubstr("and 2 more places"), HasSubstr("and 30 more")));
}

TEST(DescribeDamageTest, WhereNoImageIsHit) {
  store::ScrubDamage record = Chunk(1, 2);
  record.part = Part::kRecord;
  EXPECT_THAT(DescribeDamage({record}, std::vector<std::string>()),
              AllOf(HasSubstr("No image needs it"), Not(HasSubstr("rekindle ckpt"))));
  EXPECT_THAT(DescribeDamage({Chunk(1, 2)}, absl::ResourceExhaustedError("too many open files")),
              HasSubstr("too many open files"));
  EXPECT_EQ(DescribeDamage({}, std::vector<std::string>()), "");
}

TEST(CheckScrubTest, WarnsOfDamageAndNamesNobodysImages) {
  const absl::Time now = absl::FromUnixSeconds(1764000000);
  store::ScrubStatus status;
  EXPECT_EQ(CheckScrub(status, now).result(), v1::Check::OK);
  status.state.last_ended_unix_ns = absl::ToUnixNanos(now - absl::Minutes(3));
  v1::Check check = CheckScrub(status, now);
  EXPECT_EQ(check.result(), v1::Check::OK);
  EXPECT_THAT(check.detail(), AllOf(HasSubstr("3 min"), HasSubstr("no damage")));
  status.state.damage.push_back(Chunk(1, 2));
  status.damaged_images = {"secret:1"};
  check = CheckScrub(status, now);
  EXPECT_EQ(check.result(), v1::Check::WARNING);
  EXPECT_THAT(check.detail(), AllOf(HasSubstr("whole: 1"), Not(HasSubstr("secret"))));
  EXPECT_NE(check.cure(), "");
  EXPECT_EQ(CheckScrub(absl::InternalError("why"), now).detail(), "why");
}

// Else a daemon that ends would wait for an hour.
TEST(BackgroundScrubTest, EndsWhileItRests) {
  auto folder = TemporaryDirectory::Make(testing::TempDir(), "rekindle_scrub_test.");
  ASSERT_TRUE(folder.ok()) << folder.status();
  store::StoreOptions options;
  options.path = folder->path() + "/store";
  const BackgroundScrub scrub([&] { return store::Store::Open(options); }, absl::Hours(24 * 14));
}

}  // namespace
}  // namespace rekindle::daemon
