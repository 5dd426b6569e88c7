#include "criu/image_files.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <functional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "criu/images.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string Word(uint32_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

std::string Record(const google::protobuf::MessageLite& message) {
  std::string body = message.SerializeAsString();
  return absl::StrCat(Word(static_cast<uint32_t>(body.size())), body);
}

std::string Image(uint32_t magic, const std::vector<std::string>& records) {
  std::string image = absl::StrCat(Word(0x54564319), Word(magic));
  for (const std::string& record : records) image += record;
  return image;
}

std::string PagemapImage(const std::vector<std::string>& entries) {
  pb::PagemapHead head;
  head.set_pages_id(3);
  std::vector<std::string> records = {Record(head)};
  records.insert(records.end(), entries.begin(), entries.end());
  return Image(0x56084025, records);
}

pb::PagemapEntry NewEntry(uint64_t address, uint64_t pages, uint32_t flags) {
  pb::PagemapEntry entry;
  entry.set_address(address);
  entry.set_old_page_count(0);
  entry.set_page_count(pages);
  entry.set_flags(flags);
  return entry;
}

std::string SamplePstree() {
  pb::PstreeEntry root, child;
  root.set_pid(100);
  root.set_parent_pid(0);
  root.set_process_group(100);
  root.set_session(100);
  root.add_threads(100);
  root.add_threads(102);
  child.set_pid(101);
  child.set_parent_pid(100);
  child.set_process_group(100);
  child.set_session(100);
  child.add_threads(101);
  return Image(0x50273030, {Record(root), Record(child)});
}

std::string SampleMm() {
  pb::Mm mm;
  pb::Vma* heap = mm.add_areas();
  heap->set_start(0x1000);
  heap->set_end(0x5000);
  heap->set_flags(MAP_PRIVATE | MAP_ANONYMOUS);
  heap->set_status(1 | 1 << 9);
  pb::Vma* file = mm.add_areas();
  file->set_start(0x10000);
  file->set_end(0x12000);
  file->set_flags(MAP_PRIVATE);
  file->set_status(1 | 1 << 6);
  file->set_advice_bits(1 << MADV_DONTFORK);
  // A field that our schema does not know must survive a rewrite.
  mm.mutable_unknown_fields()->append("\x60\xe7\x24");  // number 12: 4711
  return Image(0x57492820, {Record(mm)});
}

std::string SampleFiles() {
  pb::FileEntry regular, socket, ghost;
  regular.set_type(1);
  regular.set_id(7);
  regular.mutable_regular()->set_id(7);
  regular.mutable_regular()->set_path("/tmp/a");
  regular.mutable_regular()->set_size(5);
  socket.set_type(4);
  socket.set_id(8);
  ghost.set_type(1);
  ghost.set_id(9);
  ghost.mutable_regular()->set_id(9);
  ghost.mutable_regular()->set_path("/tmp/b");
  return Image(0x56303138, {Record(regular), Record(socket), Record(ghost)});
}

std::string SampleTcpStream(uint32_t unsent) {
  pb::TcpStream stream;
  stream.set_sending_length(6);
  stream.set_unsent_length(unsent);
  stream.mutable_unknown_fields()->append("\x10\xe7\x24");  // 2, the receive queue's sequence number: 4711
  return absl::StrCat(Image(0x51465506, {Record(stream)}), "received", "tosend");
}

std::string SampleRemaps() {
  pb::RemapEntry remap;
  remap.set_file_id(9);
  remap.set_remap_id(1);
  remap.set_type(1);
  return Image(0x59133954, {Record(remap)});
}

std::string SampleInventory() {
  pb::Inventory inventory;
  inventory.set_image_version(2);
  inventory.set_network_lock_method(2);
  inventory.set_dump_criu_run_id("01234567-89ab-cdef-0123-456789abcdef");
  return absl::StrCat(Word(0x58313116), Record(inventory));
}

std::string SampleStats() {
  pb::Statistics stats;
  stats.mutable_dump()->set_frozen_us(1234);
  stats.mutable_dump()->set_pages_written(99);
  return absl::StrCat(Word(0x55105940), Word(0x57093306), Record(stats));
}

TEST(ImageFilesTest, Pstree) {
  absl::StatusOr<std::vector<PstreeEntry>> tree = ParsePstree(SamplePstree());
  ASSERT_TRUE(tree.ok()) << tree.status();
  ASSERT_THAT(*tree, SizeIs(2));
  EXPECT_THAT((*tree)[0].threads, ElementsAre(100, 102));
  EXPECT_EQ((*tree)[1].ppid, 100);
  EXPECT_EQ(ParsePstree(Image(0x50273030, {})).status().code(), absl::StatusCode::kDataLoss);
  pb::PstreeEntry huge;
  huge.set_pid(0xffffffff);
  EXPECT_EQ(ParsePstree(Image(0x50273030, {Record(huge)})).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ImageFilesTest, InventoryAndStats) {
  absl::StatusOr<Inventory> inventory = ParseInventory(SampleInventory());
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_EQ(inventory->image_version, 2u);
  EXPECT_EQ(inventory->network_lock_method, 2u);
  EXPECT_EQ(inventory->run, "01234567-89ab-cdef-0123-456789abcdef");
  absl::StatusOr<DumpStats> stats = ParseDumpStats(SampleStats());
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->frozen_us, 1234u);
  EXPECT_EQ(stats->pages_written, 99u);
}

TEST(ImageFilesTest, PagemapOffsetsCountPresentPagesOnly) {
  absl::StatusOr<Pagemap> pagemap = ParsePagemap(
      PagemapImage({Record(NewEntry(0x1000, 2, kPagePresent)), Record(NewEntry(0x8000, 5, kPageInParent)),
                    Record(NewEntry(0x20000, 1, kPagePresent | kPageLazy))}));
  ASSERT_TRUE(pagemap.ok()) << pagemap.status();
  EXPECT_EQ(pagemap->pages_id, 3u);
  ASSERT_THAT(pagemap->entries, SizeIs(3));
  EXPECT_EQ(pagemap->entries[0].file_offset, 0u);
  EXPECT_EQ(pagemap->entries[2].file_offset, 2 * kPageBytes);
  EXPECT_EQ(pagemap->present_pages(), 3u);
  EXPECT_EQ(ParsePagemap(SerializePagemap(*pagemap))->entries.size(), 3u);
}

TEST(ImageFilesTest, PagemapOfOlderCriu) {
  pb::PagemapEntry old;
  old.set_address(0x4000);
  old.set_old_page_count(7);
  pb::PagemapEntry in_parent = old;
  in_parent.set_in_parent(true);
  absl::StatusOr<Pagemap> pagemap = ParsePagemap(PagemapImage({Record(old), Record(in_parent)}));
  ASSERT_TRUE(pagemap.ok()) << pagemap.status();
  EXPECT_EQ(pagemap->entries[0].pages, 7u);
  EXPECT_EQ(pagemap->entries[0].flags, kPagePresent);
  EXPECT_EQ(pagemap->entries[1].flags, kPageInParent);
}

TEST(ImageFilesTest, PagemapRefusesWhatItDoesNotKnow) {
  pb::PagemapEntry compressed = NewEntry(0x1000, 1, kPagePresent);
  compressed.mutable_unknown_fields()->append(
      "\x32\x06"
      "blocks");  // number 6, of that length
  EXPECT_EQ(ParsePagemap(PagemapImage({Record(compressed)})).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ParsePagemap(PagemapImage({Record(NewEntry(0x1000, 1, 8 | kPagePresent))})).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(ImageFilesTest, PagemapRefusesAbsurdEntries) {
  for (const pb::PagemapEntry& entry :
       {NewEntry(0x1001, 1, kPagePresent), NewEntry(0x1000, 0, kPagePresent),
        NewEntry(0x1000, ~0ull, kPagePresent), NewEntry(~0ull - 4095, 2, kPagePresent)}) {
    EXPECT_EQ(ParsePagemap(PagemapImage({Record(entry)})).status().code(), absl::StatusCode::kDataLoss)
        << entry.ShortDebugString();
  }
}

TEST(ImageFilesTest, Mm) {
  std::string image = SampleMm();
  absl::StatusOr<std::vector<Vma>> areas = ParseMm(image);
  ASSERT_TRUE(areas.ok()) << areas.status();
  ASSERT_THAT(*areas, SizeIs(2));
  EXPECT_TRUE((*areas)[0].plain_anonymous());
  EXPECT_FALSE((*areas)[1].plain_anonymous());
  EXPECT_EQ((*areas)[1].madv, uint64_t{1} << MADV_DONTFORK);
  EXPECT_FALSE(HugePagesDisabled(image).value());
  pb::Mm mm;
  ASSERT_TRUE(mm.ParseFromString(image.substr(12)));
  mm.set_huge_pages_disabled(true);
  EXPECT_TRUE(HugePagesDisabled(Image(0x57492820, {Record(mm)})).value());
}

TEST(ImageFilesTest, SizesOfWrittenAndOfNamedFilesCanBeForgotten) {
  pb::FileEntry read_only, written;
  for (pb::FileEntry* entry : {&read_only, &written}) {
    entry->set_type(1);
    entry->mutable_regular()->set_path("/tmp/a");
    entry->mutable_regular()->set_size(5);
  }
  read_only.mutable_regular()->set_flags(O_RDONLY | O_CLOEXEC);
  written.mutable_regular()->set_flags(O_WRONLY);
  auto forgotten = ForgetSizes(Image(0x56303138, {Record(read_only), Record(written)}), {});
  ASSERT_TRUE(forgotten.ok()) << forgotten.status();
  auto files = ParseRegularFiles(*forgotten);
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_THAT(*files, SizeIs(2));
  EXPECT_TRUE((*files)[0].has_size);
  EXPECT_FALSE((*files)[0].written);
  EXPECT_FALSE((*files)[1].has_size);
  EXPECT_TRUE((*files)[1].written);
  forgotten = ForgetSizes(Image(0x56303138, {Record(read_only), Record(written)}), {"/tmp/a", "/tmp/b"});
  ASSERT_TRUE(forgotten.ok()) << forgotten.status();
  EXPECT_FALSE((*ParseRegularFiles(*forgotten))[0].has_size);
}

TEST(ImageFilesTest, AnythingMayTakeThePlaceOfFilesFromOutside) {
  pb::FileEntry inside, outside;
  for (pb::FileEntry* entry : {&inside, &outside}) {
    entry->set_type(1);
    entry->set_id(entry == &inside ? 1 : 2);
    entry->mutable_regular()->set_path("/log");
    entry->mutable_regular()->set_position(70);
    entry->mutable_regular()->set_size(80);
    entry->mutable_regular()->set_mode(0100644);
  }
  outside.mutable_regular()->set_external(true);
  const auto changed = ForgetFilesOutside(Image(0x56303138, {Record(inside), Record(outside)}));
  ASSERT_TRUE(changed.ok()) << changed.status();
  outside.mutable_regular()->set_position(UINT64_MAX);
  outside.mutable_regular()->clear_size();
  outside.mutable_regular()->clear_mode();
  EXPECT_EQ(*changed, Image(0x56303138, {Record(inside), Record(outside)}));
}

TEST(ImageFilesTest, FilesOutsideGetTheirPaths) {
  pb::FileEntry known, other;
  for (pb::FileEntry* entry : {&known, &other}) {
    entry->set_type(1);
    entry->set_id(entry == &known ? 1 : 2);
    entry->mutable_regular()->set_path(entry == &known ? "file[4:1f]" : "file[4:20]");
    entry->mutable_regular()->set_external(true);
    entry->mutable_regular()->set_position(80);
  }
  const auto changed =
      NameFilesOutside(Image(0x56303138, {Record(known), Record(other)}), {{"file[4:1f]", "/log"}});
  ASSERT_TRUE(changed.ok()) << changed.status();
  known.mutable_regular()->set_path("/log");
  known.mutable_regular()->clear_external();
  EXPECT_EQ(*changed, Image(0x56303138, {Record(known), Record(other)}));
}

TEST(ImageFilesTest, ModesOfSomeFilesAreForgotten) {
  pb::FileEntry log, other;
  for (pb::FileEntry* entry : {&log, &other}) {
    entry->set_type(1);
    entry->set_id(entry == &log ? 1 : 2);
    entry->mutable_regular()->set_path(entry == &log ? "/log" : "/other");
    entry->mutable_regular()->set_size(80);
    entry->mutable_regular()->set_mode(0100600);
  }
  const auto changed = ForgetModes(Image(0x56303138, {Record(log), Record(other)}), {"/log"});
  ASSERT_TRUE(changed.ok()) << changed.status();
  log.mutable_regular()->clear_mode();
  EXPECT_EQ(*changed, Image(0x56303138, {Record(log), Record(other)}));
}

TEST(ImageFilesTest, BuildIdsOfSomeFilesAreForgotten) {
  pb::FileEntry known, other;
  uint32_t id = 0;
  for (pb::FileEntry* entry : {&known, &other}) {
    entry->set_type(1);
    entry->set_id(++id);
    entry->mutable_regular()->set_id(id);
    entry->mutable_regular()->set_path(id == 1 ? "/lib/known" : "/lib/other");
    entry->mutable_regular()->set_size(5);
    entry->mutable_regular()->add_build_id(0x64636261);
    entry->mutable_regular()->add_build_id(0x65);
  }
  const std::string image = Image(0x56303138, {Record(known), Record(other)});
  auto forgotten = ForgetBuildIds(image, {"/lib/known", "/lib/third"});
  ASSERT_TRUE(forgotten.ok()) << forgotten.status();
  auto files = ParseRegularFiles(*forgotten);
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_THAT(*files, SizeIs(2));
  EXPECT_EQ((*files)[0].build_id, "");
  EXPECT_EQ((*files)[0].size, 5u);
  EXPECT_EQ((*files)[1].build_id, std::string("abcde\0\0\0", 8));
  EXPECT_EQ(ForgetBuildIds(image, {}).value(), image);
}

TEST(ImageFilesTest, AreasThatAreNotPlain) {
  Vma area;
  area.flags = MAP_PRIVATE | MAP_ANONYMOUS;
  area.status = 1 | 1 << 9;
  EXPECT_TRUE(area.plain_anonymous());
  for (uint32_t bit : {2u, 3u, 10u, 12u, 13u, 15u, 16u, 17u}) {
    Vma special = area;
    special.status |= 1u << bit;
    EXPECT_FALSE(special.plain_anonymous()) << bit;
  }
  for (uint32_t flag : {MAP_LOCKED, MAP_HUGETLB}) {
    Vma special = area;
    special.flags |= flag;
    EXPECT_FALSE(special.plain_anonymous());
  }
  area.flags = MAP_SHARED | MAP_ANONYMOUS;
  EXPECT_FALSE(area.plain_anonymous());
}

TEST(ImageFilesTest, RegularFilesAndGhosts) {
  absl::StatusOr<std::vector<RegularFile>> files = ParseRegularFiles(SampleFiles(), SampleRemaps());
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_THAT(*files, SizeIs(2));
  EXPECT_EQ((*files)[0].path, "/tmp/a");
  EXPECT_TRUE((*files)[0].has_size);
  EXPECT_EQ((*files)[0].size, 5u);
  EXPECT_FALSE((*files)[0].ghost);
  EXPECT_TRUE((*files)[1].ghost);
  EXPECT_FALSE((*files)[1].has_size);
}

TEST(ImageFilesTest, HowRegularFilesAreOpen) {
  pb::FileEntry appended, read;
  for (pb::FileEntry* entry : {&appended, &read}) {
    entry->set_type(1);
    entry->mutable_regular()->set_path("/tmp/a");
  }
  appended.mutable_regular()->set_flags(O_WRONLY | O_APPEND);
  appended.mutable_regular()->set_position(1ull << 40);
  read.mutable_regular()->set_flags(O_RDWR);
  auto files = ParseRegularFiles(Image(0x56303138, {Record(appended), Record(read)}));
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_THAT(*files, SizeIs(2));
  EXPECT_TRUE((*files)[0].written && (*files)[0].append && !(*files)[0].readable);
  EXPECT_EQ((*files)[0].position, 1ull << 40);
  EXPECT_TRUE((*files)[1].written && !(*files)[1].append && (*files)[1].readable);
}

TEST(ImageFilesTest, MappingsThatMayChangeTheirFile) {
  Vma area;
  area.status = 1u << 7;
  EXPECT_FALSE(area.writable_file());
  area.prot = PROT_READ | PROT_WRITE;
  EXPECT_TRUE(area.writable_file());
  area.status = 1u << 6;
  EXPECT_FALSE(area.writable_file()) << "copies of its pages are written";
  area.status = 1u << 7;
  area.prot = PROT_READ;
  area.file_flags = O_RDWR;
  EXPECT_TRUE(area.writable_file()) << "it may be made writable";
}

pb::FileEntry TimerEntry(uint32_t id, uint64_t ticks, uint64_t value_ns, uint64_t interval_ns,
                         uint32_t flags) {
  pb::FileEntry entry;
  entry.set_type(17);
  entry.set_id(id);
  entry.mutable_timer()->set_ticks(ticks);
  entry.mutable_timer()->set_settime_flags(flags);
  entry.mutable_timer()->set_value_seconds(0);
  entry.mutable_timer()->set_value_nanoseconds(value_ns);
  entry.mutable_timer()->set_interval_seconds(0);
  entry.mutable_timer()->set_interval_nanoseconds(interval_ns);
  return entry;
}

TEST(ImageFilesTest, ASignalForTheParentsDeathIsForgotten) {
  pb::Core core;
  core.mutable_task()->mutable_timers()->mutable_real()->set_value_seconds(1);
  core.mutable_thread();
  pb::Core with_signal = core;
  with_signal.mutable_thread()->set_parent_death_signal(9);
  auto image = [](const pb::Core& c) { return Image(0x55053847, {Record(c)}); };
  EXPECT_EQ(ForgetDeathSignal(image(with_signal)).value(), image(core));
  EXPECT_EQ(ForgetDeathSignal(image(core)).value(), image(core));
}

TEST(ImageFilesTest, TerminalsOfSessionsOutsideAreNobodysOwn) {
  auto terminal = [](uint32_t session, uint32_t group) {
    pb::TtyInfo info;
    info.set_session(session);
    info.set_foreground_group(group);
    return Record(info);
  };
  constexpr uint32_t kMagic = 0x59453036;
  PstreeEntry leader, member;
  leader.pid = leader.sid = 10;
  member.pid = 11;
  member.sid = 7;  // whose leader is not there
  const std::string of_leader = Image(kMagic, {terminal(10, 11)}),
                    of_outsider = Image(kMagic, {terminal(7, 11)}),
                    of_nobody = Image(kMagic, {terminal(0, 0)});
  EXPECT_EQ(ForgetForeignSessions(of_leader, {leader, member}).value(), of_leader);
  EXPECT_EQ(ForgetForeignSessions(of_nobody, {member}).value(), of_nobody);
  EXPECT_EQ(ForgetForeignSessions(of_outsider, {leader, member}).value(), of_nobody);
  EXPECT_EQ(ForgetForeignSessions(SampleFiles(), {leader}).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ImageFilesTest, OnlyExpiredPeriodicTimersAreArmedAgain) {
  const pb::FileEntry running = TimerEntry(1, 1, 300, 500, 0), one_shot = TimerEntry(2, 1, 0, 0, 0),
                      disarmed = TimerEntry(3, 0, 0, 500, 0), absolute = TimerEntry(4, 1, 0, 500, 1),
                      expired = TimerEntry(5, 1, 0, 500, 0), armed = TimerEntry(5, 1, 500, 500, 0);
  const std::string untouched =
      Image(0x56303138, {Record(running), Record(one_shot), Record(disarmed), Record(absolute)});
  EXPECT_EQ(RearmExpiredTimers(untouched).value(), untouched);
  EXPECT_EQ(RearmExpiredTimers(Image(0x56303138, {Record(expired), Record(running)})).value(),
            Image(0x56303138, {Record(armed), Record(running)}));
}

TEST(ImageFilesTest, WhatWasNotSentIsToldAsSent) {
  EXPECT_EQ(TellUnsentAsSent(SampleTcpStream(4)).value(), SampleTcpStream(0));
  EXPECT_EQ(TellUnsentAsSent(SampleTcpStream(6)).value(), SampleTcpStream(0));
  EXPECT_EQ(TellUnsentAsSent(SampleTcpStream(0)).value(), SampleTcpStream(0));
  EXPECT_EQ(TellUnsentAsSent(SampleTcpStream(7)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(TellUnsentAsSent(SampleFiles()).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(TellUnsentAsSent(SampleTcpStream(4).substr(0, 12)).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ImageFilesTest, SocketsThatListenAreKnown) {
  constexpr uint32_t kEstablished = 1, kListens = 10;
  auto listens = [](const pb::FileEntry& entry) {
    return HasListeningSocket(Image(0x56303138, {Record(TimerEntry(1, 1, 300, 500, 0)), Record(entry)}))
        .value();
  };
  pb::FileEntry entry;
  entry.set_type(2);
  entry.set_id(2);
  EXPECT_FALSE(listens(entry));
  entry.mutable_internet_socket()->set_state(kEstablished);
  EXPECT_FALSE(listens(entry));
  entry.mutable_internet_socket()->set_state(kListens);
  EXPECT_TRUE(listens(entry));
  entry.clear_internet_socket();
  entry.mutable_unix_socket()->set_state(kEstablished);
  EXPECT_FALSE(listens(entry));
  entry.mutable_unix_socket()->set_state(kListens);
  EXPECT_TRUE(listens(entry));
}

TEST(ImageFilesTest, SemaphoresAreCounted) {
  pb::FileEntry counter, semaphore;
  counter.mutable_event()->set_flags(O_RDWR | O_NONBLOCK);
  semaphore.mutable_event()->set_flags(O_RDWR | O_APPEND);
  EXPECT_EQ(CountSemaphores(Image(0x56303138, {Record(counter), Record(semaphore),
                                               Record(TimerEntry(1, 1, 300, 500, 0)), Record(semaphore)}))
                .value(),
            2u);
  EXPECT_EQ(CountSemaphores(Image(0x56303138, {Record(counter)})).value(), 0u);
}

TEST(ImageFilesTest, WrongKindIsNamed) {
  absl::Status status = ParsePstree(SampleMm()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("magic"));
}

pb::FileLock Lock(uint32_t kind, uint32_t type, int fd, int64_t start, int64_t length) {
  pb::FileLock lock;
  lock.set_kind(kind);
  lock.set_type(type);
  lock.set_pid(100);
  lock.set_fd(fd);
  lock.set_start(start);
  lock.set_length(length);
  return lock;
}

std::string SampleLocks() {
  return Image(0x54323616, {Record(Lock(2, F_WRLCK, 3, 0, 0)), Record(Lock(1, F_RDLCK, 4, 10, 5)),
                            Record(Lock(8, F_RDLCK, 5, 0, 0)), Record(Lock(2, 32 | 64, 6, 0, 0)),
                            Record(Lock(4, F_WRLCK, 7, 100, 0))});
}

std::string SampleIds() {
  pb::IdsOfTask ids;
  ids.set_files_id(9);
  return Image(0x54432030, {Record(ids)});
}

std::string SampleDescriptors() {
  std::vector<std::string> records;
  for (auto [fd, file_id, type] : {std::tuple(0, 21, 11), {3, 22, 1}, {4, 23, 1}}) {
    pb::Descriptor descriptor;
    descriptor.set_fd(static_cast<uint32_t>(fd));
    descriptor.set_file_id(static_cast<uint32_t>(file_id));
    descriptor.set_type(static_cast<uint32_t>(type));
    records.push_back(Record(descriptor));
  }
  return Image(0x56213732, records);
}

TEST(ImageFilesTest, FileLocksWithoutLeases) {
  absl::StatusOr<std::vector<FileLock>> locks = ParseFileLocks(SampleLocks());
  ASSERT_TRUE(locks.ok()) << locks.status();
  ASSERT_THAT(*locks, SizeIs(3));
  EXPECT_EQ((*locks)[0].kind, FileLock::Kind::kFlock);
  EXPECT_TRUE((*locks)[0].exclusive);
  EXPECT_EQ((*locks)[0].pid, 100);
  EXPECT_EQ((*locks)[0].fd, 3);
  EXPECT_EQ((*locks)[1].kind, FileLock::Kind::kPosix);
  EXPECT_FALSE((*locks)[1].exclusive);
  EXPECT_EQ((*locks)[1].start, 10);
  EXPECT_EQ((*locks)[1].length, 5);
  EXPECT_EQ((*locks)[2].kind, FileLock::Kind::kOfd);
  EXPECT_EQ((*locks)[2].length, 0);
}

TEST(ImageFilesTest, LocksOfImpossibleRangesAreDamage) {
  for (const pb::FileLock& lock :
       {Lock(1, F_WRLCK, 3, -1, 0), Lock(1, F_WRLCK, 3, 0, -1), Lock(2, F_WRLCK, -1, 0, 0)}) {
    EXPECT_EQ(ParseFileLocks(Image(0x54323616, {Record(lock)})).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(ImageFilesTest, WhichFilesDescriptorsAre) {
  absl::StatusOr<uint32_t> id = ParseDescriptorsId(SampleIds());
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(*id, 9u);
  auto descriptors = ParseRegularDescriptors(SampleDescriptors());
  ASSERT_TRUE(descriptors.ok()) << descriptors.status();
  EXPECT_THAT(*descriptors, ElementsAre(std::pair(3, 22u), std::pair(4, 23u)));
}

// No byte string may crash a reader or make it allocate without bound: every truncation, every single byte
// flip and every byte set to 0xff (lengths!) of every kind of image.
TEST(ImageFilesTest, DamagedImagesNeverCrash) {
  const std::vector<std::pair<std::string, std::function<absl::Status(absl::string_view)>>> kinds = {
      {SamplePstree(), [](absl::string_view s) { return ParsePstree(s).status(); }},
      {SampleInventory(), [](absl::string_view s) { return ParseInventory(s).status(); }},
      {PagemapImage({Record(NewEntry(0x1000, 2, kPagePresent)), Record(NewEntry(0x8000, 5, kPageInParent))}),
       [](absl::string_view s) { return ParsePagemap(s).status(); }},
      {SampleMm(), [](absl::string_view s) { return ParseMm(s).status(); }},
      {SampleMm(), [](absl::string_view s) { return HugePagesDisabled(s).status(); }},
      {SampleFiles(), [](absl::string_view s) { return ParseRegularFiles(s).status(); }},
      {SampleFiles(), [](absl::string_view s) { return RearmExpiredTimers(s).status(); }},
      {SampleFiles(), [](absl::string_view s) { return HasListeningSocket(s).status(); }},
      {SampleFiles(), [](absl::string_view s) { return HasArmedTimerFile(s).status(); }},
      {SampleFiles(), [](absl::string_view s) { return CountSemaphores(s).status(); }},
      {SampleFiles(), [](absl::string_view s) { return TcpConnections(s).status(); }},
      {SampleRemaps(), [](absl::string_view s) { return ParseRegularFiles(SampleFiles(), s).status(); }},
      {SampleLocks(), [](absl::string_view s) { return ParseFileLocks(s).status(); }},
      {SampleIds(), [](absl::string_view s) { return ParseDescriptorsId(s).status(); }},
      {SampleDescriptors(), [](absl::string_view s) { return ParseRegularDescriptors(s).status(); }},
      {SampleStats(), [](absl::string_view s) { return ParseDumpStats(s).status(); }},
  };
  for (const auto& [sample, parse] : kinds) {
    ASSERT_TRUE(parse(sample).ok()) << parse(sample);
    // A cut through the head or a record is noticed; one between records can't be. An empty remap file means
    // none.
    for (size_t size = 1; size < 8; ++size) {
      EXPECT_EQ(parse(absl::string_view(sample).substr(0, size)).code(), absl::StatusCode::kDataLoss);
    }
    EXPECT_EQ(parse(absl::string_view(sample).substr(0, sample.size() - 1)).code(),
              absl::StatusCode::kDataLoss);
    for (size_t i = 0; i < sample.size(); ++i) {
      parse(absl::string_view(sample).substr(0, i)).IgnoreError();
      std::string damaged = sample;
      for (int bit = 0; bit < 8; ++bit) {
        damaged[i] = static_cast<char>(sample[i] ^ (1 << bit));
        parse(damaged).IgnoreError();
      }
      damaged[i] = '\xff';
      parse(damaged).IgnoreError();
    }
    std::string bad_magic = sample;
    bad_magic[0] ^= 1;
    EXPECT_EQ(parse(bad_magic).code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(parse(sample + "x").code(), absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace rekindle::criu
