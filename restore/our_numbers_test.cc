#include "restore/our_numbers.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::restore {
namespace {

using ::testing::ElementsAre;

const OurNumbers& Container() {
  static const OurNumbers& numbers = *new OurNumbers({{1, 5001}, {300, 5002}, {301, 5003}});
  return numbers;
}

TEST(OurNumbersTest, OfProcessesAndThreads) {
  EXPECT_EQ(Container().Of(300), 5002);
  EXPECT_EQ(Container().Of(302), 0);
  EXPECT_EQ(OurNumbers().Of(302), 302);

  criu::PstreeEntry process;
  process.pid = 300;
  process.threads = {300, 301};
  const auto tree = InOurNumbers(std::vector{process}, Container());
  EXPECT_EQ(tree[0].pid, 5002);
  EXPECT_THAT(tree[0].threads, ElementsAre(5002, 5003));

  WithheldTask task;
  task.pid = 300;
  task.object = "mem/300";
  const auto tasks = InOurNumbers(std::vector{task}, Container());
  EXPECT_EQ(tasks[0].pid, 5002);
  EXPECT_EQ(tasks[0].object, "mem/300");

  gpu::GpuRecord record;
  record.pids = {300};
  record.uses.resize(1);
  record.uses[0].pid = 301;
  record = InOurNumbers(record, Container());
  EXPECT_THAT(record.pids, ElementsAre(5002));
  EXPECT_EQ(record.uses[0].pid, 5003);

  v1::JobManifest manifest;
  manifest.add_placements()->add_threads(301);
  manifest.add_manners()->add_threads(300);
  const v1::JobManifest ours = InOurNumbers(manifest, Container());
  EXPECT_THAT(ours.placements(0).threads(), ElementsAre(5003));
  EXPECT_THAT(ours.manners(0).threads(), ElementsAre(5002));
}

}  // namespace
}  // namespace rekindle::restore
