#include "criu/lost_names.h"

#include <fcntl.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "criu/image_records.h"
#include "criu/images.pb.h"

namespace rekindle::criu {
namespace {

constexpr uint32_t kByLink = 0, kGhost = 1;  // RemapEntry::type
constexpr char kFiles[] = "files.img", kRemaps[] = "remap-fpath.img";

absl::StatusOr<std::vector<pb::RemapEntry>> ReadRemaps(absl::string_view content) {
  std::vector<pb::RemapEntry> remaps;
  RK_RETURN_IF_ERROR(
      ForEachRemap(content, [&](pb::RemapEntry& entry) { remaps.push_back(std::move(entry)); }));
  return remaps;
}

absl::StatusOr<std::vector<pb::FileEntry>> ReadFiles(absl::string_view content) {
  std::vector<pb::FileEntry> files;
  RK_RETURN_IF_ERROR(ForEachFile(content, [&](pb::FileEntry& entry) { files.push_back(std::move(entry)); }));
  return files;
}

std::string GhostHead(const LinkReplacement& file) {
  pb::GhostFile entry;
  entry.set_uid(file.uid);
  entry.set_gid(file.gid);
  entry.set_mode(file.mode);
  RecordWriter writer(kGhostMagic);
  writer.Add(entry);
  return writer.Take();
}

constexpr absl::string_view kGhostPrefix = "ghost-file-";
std::string GhostName(uint32_t number) { return absl::StrFormat("%s%x.img", kGhostPrefix, number); }

uint32_t FirstFreeGhost(const std::vector<pb::RemapEntry>& remaps) {
  uint32_t next = 1;
  for (const pb::RemapEntry& remap : remaps) {
    if (remap.type() == kGhost) next = std::max(next, remap.remap_id() + 1);
  }
  return next;
}

}  // namespace

bool HasContent(absl::string_view image_file) { return absl::StartsWith(image_file, kGhostPrefix); }

absl::StatusOr<std::vector<ExtraLink>> FindExtraLinks(absl::string_view files_content,
                                                      absl::string_view remaps_content) {
  std::vector<ExtraLink> links;
  RK_ASSIGN_OR_RETURN(const std::vector<pb::RemapEntry> remaps, ReadRemaps(remaps_content));
  if (std::none_of(remaps.begin(), remaps.end(),
                   [](const pb::RemapEntry& remap) { return remap.type() == kByLink; })) {
    return links;
  }
  RK_ASSIGN_OR_RETURN(const std::vector<pb::FileEntry> files, ReadFiles(files_content));
  std::map<uint32_t, const pb::RegularFile*> by_id;
  for (const pb::FileEntry& file : files) {
    if (file.has_regular()) by_id[file.regular().id()] = &file.regular();
  }
  std::map<uint32_t, size_t> places;  // by the number of the extra name
  for (const pb::RemapEntry& remap : remaps) {
    if (remap.type() != kByLink) continue;
    auto file = by_id.find(remap.file_id()), link = by_id.find(remap.remap_id());
    if (file == by_id.end() || link == by_id.end()) {
      return Damaged("remap-fpath", absl::StrCat("it speaks of a file ", remap.file_id(), " and its name ",
                                                 remap.remap_id(), ", and they are not both there"));
    }
    auto [place, is_new] = places.emplace(remap.remap_id(), links.size());
    if (is_new) links.push_back({link->second->path(), file->second->path(), false, {}});
    ExtraLink& found = links[place->second];
    found.written |= (file->second->flags() & O_ACCMODE) != O_RDONLY;
    found.file_ids.push_back(remap.file_id());
  }
  return links;
}

absl::Status ReplaceExtraLinks(std::map<std::string, LinkReplacement>&& by_path,
                               std::map<std::string, std::string>* criu_files) {
  if (by_path.empty()) return absl::OkStatus();
  auto& images = *criu_files;
  RK_ASSIGN_OR_RETURN(std::vector<ExtraLink> links, FindExtraLinks(images[kFiles], images[kRemaps]));
  RK_ASSIGN_OR_RETURN(std::vector<pb::FileEntry> files, ReadFiles(images[kFiles]));
  RK_ASSIGN_OR_RETURN(const std::vector<pb::RemapEntry> remaps, ReadRemaps(images[kRemaps]));
  uint32_t next_ghost = FirstFreeGhost(remaps);

  std::map<uint32_t, const LinkReplacement*> by_file;
  std::map<uint32_t, uint32_t> ghosts;  // by file
  std::map<std::string, std::string> contents;
  for (auto& [path, replacement] : by_path) {
    auto link = std::find_if(links.begin(), links.end(),
                             [&wanted = path](const ExtraLink& l) { return l.path == wanted; });
    if (link == links.end()) {
      return absl::NotFoundError(absl::StrCat("CRIU's images know no extra name ", path));
    }
    for (uint32_t id : link->file_ids) by_file[id] = &replacement;
    if (!replacement.name.empty()) continue;
    for (uint32_t id : link->file_ids) ghosts[id] = next_ghost;
    std::string& image = contents[GhostName(next_ghost++)];
    image = std::move(replacement.content);
    image.insert(0, GhostHead(replacement));
  }

  RecordWriter kept_remaps(kRemapMagic);
  size_t kept = 0;
  for (pb::RemapEntry remap : remaps) {
    if (remap.type() == kByLink && by_file.contains(remap.file_id())) {
      auto ghost = ghosts.find(remap.file_id());
      if (ghost == ghosts.end()) continue;
      remap.set_type(kGhost);
      remap.set_remap_id(ghost->second);
    }
    kept_remaps.Add(remap);
    ++kept;
  }
  RecordWriter kept_files(kFilesMagic);
  for (pb::FileEntry& file : files) {
    if (file.has_regular()) {
      if (by_path.contains(file.regular().path())) continue;
      auto replaced = by_file.find(file.regular().id());
      if (replaced != by_file.end() && !replaced->second->name.empty()) {
        file.mutable_regular()->set_path(replaced->second->name);
      }
    }
    kept_files.Add(file);
  }
  images[kFiles] = kept_files.Take();
  if (kept == 0) {
    images.erase(kRemaps);
  } else {
    images[kRemaps] = kept_remaps.Take();
  }
  for (auto& [name, content] : contents) images[name] = std::move(content);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Ghost>> MakeGhosts(const std::map<std::string, LinkReplacement>& by_path,
                                              absl::string_view files_content, std::string* remaps_content) {
  std::vector<Ghost> ghosts;
  if (by_path.empty()) return ghosts;
  RK_ASSIGN_OR_RETURN(const std::vector<pb::FileEntry> files, ReadFiles(files_content));
  RK_ASSIGN_OR_RETURN(const std::vector<pb::RemapEntry> remaps, ReadRemaps(*remaps_content));
  RecordWriter writer(kRemapMagic);
  for (const pb::RemapEntry& remap : remaps) writer.Add(remap);
  uint32_t next = FirstFreeGhost(remaps);
  for (const auto& [path, file] : by_path) {
    bool found = false;
    for (const pb::FileEntry& entry : files) {
      if (!entry.has_regular() || entry.regular().path() != path) continue;
      pb::RemapEntry remap;
      remap.set_file_id(entry.regular().id());
      remap.set_remap_id(next);
      remap.set_type(kGhost);
      writer.Add(remap);
      found = true;
    }
    if (!found) return absl::NotFoundError(absl::StrCat("CRIU's images know no file ", path));
    ghosts.push_back({path, GhostName(next++), GhostHead(file)});
  }
  *remaps_content = writer.Take();
  return ghosts;
}

}  // namespace rekindle::criu
