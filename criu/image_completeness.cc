#include "criu/image_completeness.h"

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "criu/image_files.h"
#include "criu/image_records.h"
#include "criu/images.pb.h"

namespace rekindle::criu {
namespace {

using Files = std::map<std::string, std::string>;

// Images that have nothing but records; behind those of others contents follow, as of pipes and ghosts.
constexpr absl::string_view kOnlyRecords[] = {
    "cgroup.img", "core-",        "fdinfo-",      "filelocks.img", "files.img",       "fs-",
    "ids-",       "mm-",          "mountpoints-", "pstree.img",    "remap-fpath.img", "seccomp.img",
    "timens-",    "tty-info.img", "utsns-"};

bool HasOnlyRecords(absl::string_view name) {
  for (const absl::string_view kind : kOnlyRecords) {
    if (absl::StartsWith(name, kind)) return true;
  }
  return false;
}

absl::Status CheckRecords(const std::string& content) {
  const uint32_t magic = content.size() < 8 ? 0 : ReadLittleEndian(absl::string_view(content).substr(4));
  pb::Undecoded record;
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open("records", content, magic));
  while (!reader.AtEnd()) RK_RETURN_IF_ERROR(reader.Next(&record));
  return absl::OkStatus();
}

class Check {
 public:
  explicit Check(const Files& files) : files_(files) {}

  absl::Status Run() {
    RK_ASSIGN_OR_RETURN(const std::string* inventory, Find("inventory.img"));
    RK_RETURN_IF_ERROR(In("inventory.img", ParseInventory(*inventory).status()));
    for (const auto& [name, content] : files_) {
      if (HasOnlyRecords(name)) RK_RETURN_IF_ERROR(In(name, CheckRecords(content)));
    }
    RK_ASSIGN_OR_RETURN(const std::string* pstree, Find("pstree.img"));
    const absl::StatusOr<std::vector<PstreeEntry>> tree = ParsePstree(*pstree);
    RK_RETURN_IF_ERROR(In("pstree.img", tree.status()));
    for (const PstreeEntry& process : *tree) RK_RETURN_IF_ERROR(CheckProcess(process));
    return CheckFiles();
  }

 private:
  static absl::Status In(const std::string& name, const absl::Status& status) {
    return Annotate(status, absl::StrCat("reading ", name));
  }

  absl::StatusOr<const std::string*> Find(const std::string& name) const {
    const auto found = files_.find(name);
    if (found != files_.end()) return &found->second;
    return absl::FailedPreconditionError(
        absl::StrCat("it has no ", name,
                     ", so it is not all of a dump: give the folder that `criu dump -D` "
                     "wrote, with all that is in it"));
  }

  template <class Record>
  absl::StatusOr<Record> ReadOnly(const std::string& name, absl::string_view kind, uint32_t magic) const {
    RK_ASSIGN_OR_RETURN(const std::string* content, Find(name));
    absl::StatusOr<RecordReader> reader = RecordReader::Open(kind, *content, magic);
    RK_RETURN_IF_ERROR(In(name, reader.status()));
    Record record;
    RK_RETURN_IF_ERROR(In(name, reader->Next(&record)));
    return record;
  }

  absl::Status CheckProcess(const PstreeEntry& process) {
    RK_ASSIGN_OR_RETURN(const pb::Core core,
                        ReadOnly<pb::Core>(absl::StrCat("core-", process.pid, ".img"), "core", kCoreMagic));
    if (HasEnded(core)) return absl::OkStatus();
    for (const pid_t thread : process.threads) {
      RK_RETURN_IF_ERROR(
          ReadOnly<pb::Core>(absl::StrCat("core-", thread, ".img"), "core", kCoreMagic).status());
    }
    RK_RETURN_IF_ERROR(Find(absl::StrCat("pagemap-", process.pid, ".img")).status());
    const std::string mm_name = absl::StrCat("mm-", process.pid, ".img");
    RK_ASSIGN_OR_RETURN(const pb::Mm mm, ReadOnly<pb::Mm>(mm_name, "mm", kMmMagic));
    used_.emplace(mm.executable_id(), mm_name);
    const absl::StatusOr<std::vector<Vma>> areas = ParseMm(files_.at(mm_name));
    RK_RETURN_IF_ERROR(In(mm_name, areas.status()));
    for (const Vma& area : *areas) {
      if (area.of_file()) used_.emplace(static_cast<uint32_t>(area.shmid), mm_name);
    }
    const std::string fs_name = absl::StrCat("fs-", process.pid, ".img");
    RK_ASSIGN_OR_RETURN(const pb::FileSystem fs, ReadOnly<pb::FileSystem>(fs_name, "fs", kFsMagic));
    used_.emplace(fs.working_directory_id(), fs_name);
    used_.emplace(fs.root_id(), fs_name);
    RK_ASSIGN_OR_RETURN(const pb::IdsOfTask ids,
                        ReadOnly<pb::IdsOfTask>(absl::StrCat("ids-", process.pid, ".img"), "ids", kIdsMagic));
    return CheckDescriptors(ids.files_id());
  }

  // CRIU writes none where there are no descriptors.
  absl::Status CheckDescriptors(uint32_t id) {
    const std::string name = absl::StrCat("fdinfo-", id, ".img");
    const auto found = files_.find(name);
    if (found == files_.end()) {
      if (!missing_descriptors_) missing_descriptors_ = name;
      return absl::OkStatus();
    }
    return In(name, ForEachRecord<pb::Descriptor>("fdinfo", found->second, kFdinfoMagic,
                                                  [&](const pb::Descriptor& descriptor) {
                                                    // Where files of other kinds are written down is not the
                                                    // same in all versions.
                                                    if (descriptor.type() == kRegularFileType) {
                                                      used_.emplace(descriptor.file_id(), name);
                                                    } else {
                                                      used_elsewhere_.insert(descriptor.file_id());
                                                    }
                                                  }));
  }

  absl::Status CheckFiles() const {
    RK_ASSIGN_OR_RETURN(const std::string* content, Find("files.img"));
    std::set<uint32_t> known;
    std::optional<uint32_t> unused;
    RK_RETURN_IF_ERROR(In("files.img", ForEachFile(*content, [&](const pb::FileEntry& file) {
                            known.insert(file.id());
                            if (!used_.contains(file.id()) && !used_elsewhere_.contains(file.id()))
                              unused = file.id();
                          })));
    for (const auto& [id, user] : used_) {
      if (known.contains(id)) continue;
      return absl::DataLossError(absl::StrCat("reading files.img: it lacks file ", id, ", which ", user,
                                              " names; it was cut short, or is another dump's"));
    }
    if (unused && missing_descriptors_) return Find(*missing_descriptors_).status();
    return absl::OkStatus();
  }

  const Files& files_;
  std::map<uint32_t, std::string> used_;  // files' numbers in files.img, with the image that names them
  std::set<uint32_t> used_elsewhere_;
  std::optional<std::string> missing_descriptors_;
};

}  // namespace

absl::Status CheckComplete(const Files& files) { return Check(files).Run(); }

}  // namespace rekindle::criu
