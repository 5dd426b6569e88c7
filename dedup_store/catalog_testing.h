// What the tests of the catalog share: numbered images, and the catalog's files as bytes.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/block_io.h"
#include "dedup_store/catalog.h"
#include "dedup_store/catalog_log.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {

inline constexpr char kA[] = "0000000000000001.a", kB[] = "0000000000000001.b";

inline ImageRecord NumberedRecord(uint64_t number) {
  ImageRecord record;
  record.manifest_pack = 1000 + number;
  record.info.reference = absl::StrCat("image:", number);
  record.info.digest = absl::StrFormat("sha256:%016x%048x", number * 0x9e3779b97f4a7c15, number);
  record.info.created_unix_ns = static_cast<int64_t>(number) * 1000;
  record.info.labels["number"] = absl::StrCat(number);
  // One whose record takes several sectors.
  if (number == 77) record.info.labels["text"] = std::string(1500, 'x');
  return record;
}

inline absl::Status PutNumbered(Catalog& catalog, uint64_t number) {
  return catalog.Update([&](Catalog::Txn& txn) -> absl::Status {
    ImageRecord record = NumberedRecord(number);
    RK_ASSIGN_OR_RETURN(record.id, txn.NextImageId());
    PackRecord pack;
    pack.id = record.manifest_pack;
    pack.file_bytes = number;
    RK_RETURN_IF_ERROR(txn.PutPack(pack));
    return txn.PutImage(record);
  });
}

inline absl::Status RemoveNumbered(Catalog& catalog, uint64_t number) {
  return catalog.Update([&](Catalog::Txn& txn) -> absl::Status {
    RK_ASSIGN_OR_RETURN(auto record, txn.FindReference(absl::StrCat("image:", number)));
    if (!record) return absl::NotFoundError(absl::StrCat(number));
    RK_RETURN_IF_ERROR(txn.DeletePack(record->manifest_pack));
    return txn.DeleteImage(*record);
  });
}

// A change of some size that leaves nothing behind.
inline absl::Status PutBulk(Catalog& catalog, size_t bytes) {
  return catalog.Update([&](Catalog::Txn& txn) -> absl::Status {
    ImageRecord record;
    RK_ASSIGN_OR_RETURN(record.id, txn.NextImageId());
    record.info.labels["bulk"] = std::string(bytes, 'x');
    RK_RETURN_IF_ERROR(txn.PutImage(record));
    return txn.DeleteImage(record);
  });
}

// The numbers of all images, checked in every table; or what is wrong.
inline std::string NumbersIn(const Catalog& catalog) {
  auto txn = catalog.Read();
  if (!txn.ok()) return txn.status().ToString();
  std::set<uint64_t> numbers;
  auto images = txn->Images();
  for (const ImageRecord& record : *images) {
    const auto number = static_cast<uint64_t>(record.info.created_unix_ns) / 1000;
    ImageRecord expected = NumberedRecord(number);
    expected.id = record.id;
    auto pack = txn->FindPack(record.manifest_pack);
    auto by_reference = txn->FindReference(expected.info.reference);
    auto by_digest = txn->FindDigest(absl::string_view(expected.info.digest).substr(7, 15));
    if (record.Encode() != expected.Encode() || !*pack || (*pack)->file_bytes != number || !*by_reference ||
        (*by_reference)->id != record.id || by_digest->size() != 1 || by_digest->front().id != record.id) {
      return absl::StrCat("image ", number, " is wrong");
    }
    numbers.insert(number);
  }
  if (txn->Packs()->size() != numbers.size()) return "number of packs";
  std::string text;
  for (uint64_t number : numbers) absl::StrAppend(&text, text.empty() ? "" : " ", number);
  return text;
}

class CatalogTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    // What a disk loses is simulated, and there is much syncing: memory does.
    auto folder = TemporaryDirectory::Make(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : testing::TempDir(),
                                           "rekindle_catalog_test.");
    RK_ASSERT_OK(folder);
    folder_ = std::make_unique<TemporaryDirectory>(*std::move(folder));
    path_ = folder_->path() + "/catalog";
    RK_ASSERT_OK(MakeDirectories(path_));
    RK_ASSERT_OK(Catalog::Create(path_, RealBlockIo()));
  }
  void TearDown() override { SetLogLevel(LogLevel::kWarning); }

  std::shared_ptr<Catalog> Open(BlockIo* io = RealBlockIo()) {
    auto catalog = Catalog::Open(path_, io);
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    return catalog.ok() ? *catalog : nullptr;
  }

  using Files = std::map<std::string, std::string>;
  Files Save() const {
    Files files;
    auto names = ListDirectory(path_);
    for (const std::string& name : *names) files[name] = *ReadFile(path_ + "/" + name);
    return files;
  }
  void Restore(const Files& files) const {
    auto names = ListDirectory(path_);
    for (const std::string& name : *names) ASSERT_TRUE(RemoveTree(path_ + "/" + name).ok());
    for (const auto& [name, bytes] : files) {
      int fd = open((path_ + "/" + name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      ASSERT_GE(fd, 0);
      ASSERT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
      close(fd);
    }
  }
  // The offset at which each record of the log begins, and its end.
  static std::vector<uint64_t> Offsets(const std::string& bytes) {
    bool damaged[kLogCopies];
    auto header = FindLogHeader(bytes, bytes, damaged);
    auto rest = absl::string_view(bytes).substr(kLogHeaderBytes);
    auto content = ReadLogRecords(header->nonce, kLogHeaderBytes, rest, rest);
    std::vector<uint64_t> offsets;
    for (const LogRecord& record : content->records) offsets.push_back(record.offset);
    offsets.push_back(content->end);
    return offsets;
  }
  void ExpectSound(const std::string& numbers) {
    auto catalog = Open();
    ASSERT_NE(catalog, nullptr);
    EXPECT_EQ(NumbersIn(*catalog), numbers);
    std::vector<std::string> problems = catalog->Problems();
    EXPECT_TRUE(problems.empty()) << problems.front();
  }
  // After the next commit there are two equal copies again and nothing else.
  void ExpectMended(const std::string& numbers) {
    auto catalog = Open();
    ASSERT_NE(catalog, nullptr);
    RK_ASSERT_OK(PutNumbered(*catalog, 999));
    catalog.reset();
    ExpectSound(numbers.empty() ? "999" : numbers + " 999");
    Files files = Save();
    ASSERT_EQ(files.size(), 3u);
    EXPECT_EQ(files.begin()->second, std::next(files.begin())->second);
  }

  std::unique_ptr<TemporaryDirectory> folder_;
  std::string path_;
};

}  // namespace rekindle::store
