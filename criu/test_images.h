// CRIU image files made by tests, for those that need no CRIU.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "criu/image_files.h"
#include "criu/images.pb.h"

namespace rekindle::criu {

inline std::string LittleEndianWord(uint32_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

inline std::string MakeImage(uint32_t magic, const std::vector<std::string>& records) {
  std::string image = LittleEndianWord(0x54564319) + LittleEndianWord(magic);
  for (const std::string& record : records)
    image += LittleEndianWord(static_cast<uint32_t>(record.size())) + record;
  return image;
}

inline std::string MakeInventory() {
  pb::Inventory inventory;
  inventory.set_image_version(2);
  const std::string record = inventory.SerializeAsString();
  return LittleEndianWord(0x58313116) + LittleEndianWord(static_cast<uint32_t>(record.size())) + record;
}

inline std::string MakePstree(const std::vector<PstreeEntry>& processes) {
  std::vector<std::string> records;
  for (const PstreeEntry& process : processes) {
    pb::PstreeEntry entry;
    entry.set_pid(static_cast<uint32_t>(process.pid));
    entry.set_parent_pid(static_cast<uint32_t>(process.ppid));
    entry.set_process_group(static_cast<uint32_t>(process.pgid));
    entry.set_session(static_cast<uint32_t>(process.sid));
    for (pid_t thread : process.threads) entry.add_threads(static_cast<uint32_t>(thread));
    records.push_back(entry.SerializeAsString());
  }
  return MakeImage(0x50273030, records);
}

// A private, anonymous, readable and writable area.
inline Vma AnonymousArea(uint64_t start, uint64_t bytes) {
  Vma area;
  area.start = start;
  area.end = start + bytes;
  area.prot = PROT_READ | PROT_WRITE;
  area.flags = MAP_PRIVATE | MAP_ANONYMOUS;
  area.status = 1u << 0 | 1u << 9;
  return area;
}

inline std::string MakeMm(const std::vector<Vma>& areas) {
  pb::Mm mm;
  for (const Vma& area : areas) {
    pb::Vma* entry = mm.add_areas();
    entry->set_start(area.start);
    entry->set_end(area.end);
    entry->set_protection(area.prot);
    entry->set_flags(area.flags);
    entry->set_status(area.status);
    entry->set_advice_bits(area.madv);
    entry->set_shmid(area.shmid);
    entry->set_file_flags(area.file_flags);
  }
  return MakeImage(0x57492820, {mm.SerializeAsString()});
}

struct TestFile {
  uint32_t id = 0;
  std::string path;
  uint64_t size = 0;
  uint32_t flags = 0;  // O_*
  uint64_t position = 0;
};

inline std::string MakeFiles(const std::vector<TestFile>& files) {
  std::vector<std::string> records;
  for (const TestFile& file : files) {
    pb::FileEntry entry;
    entry.set_type(1);
    entry.set_id(file.id);
    entry.mutable_regular()->set_id(file.id);
    entry.mutable_regular()->set_path(file.path);
    entry.mutable_regular()->set_size(file.size);
    entry.mutable_regular()->set_flags(file.flags);
    entry.mutable_regular()->set_position(file.position);
    records.push_back(entry.SerializeAsString());
  }
  return MakeImage(0x56303138, records);
}

// A files.img.
inline std::string MakeUnixSockets(const std::vector<pb::UnixSocket>& sockets) {
  std::vector<std::string> records;
  for (const pb::UnixSocket& socket : sockets) {
    pb::FileEntry entry;
    entry.set_type(13);
    entry.set_id(static_cast<uint32_t>(records.size() + 1));
    *entry.mutable_unix_socket() = socket;
    records.push_back(entry.SerializeAsString());
  }
  return MakeImage(0x56303138, records);
}

// As CRIU has a stream socket that listens under this name.
inline pb::UnixSocket ListeningSocket(const std::string& name, const std::string& folder = "") {
  pb::UnixSocket socket;
  socket.set_type(1);
  socket.set_state(10);
  socket.set_name(name + '\0');
  if (!folder.empty()) socket.set_folder(folder);
  return socket;
}

// A file that had lost its name: type 0: `remap` is the number of an extra name, 1: of a ghost in the images.
struct TestRemap {
  uint32_t file = 0, remap = 0, type = 0;
};

inline std::string MakeRemaps(const std::vector<TestRemap>& remaps) {
  std::vector<std::string> records;
  for (const TestRemap& remap : remaps) {
    pb::RemapEntry entry;
    entry.set_file_id(remap.file);
    entry.set_remap_id(remap.remap);
    entry.set_type(remap.type);
    records.push_back(entry.SerializeAsString());
  }
  return MakeImage(0x59133954, records);
}

// The contents of these files are ghosts.
inline std::string MakeGhosts(const std::vector<uint32_t>& file_ids) {
  std::vector<TestRemap> remaps;
  for (uint32_t id : file_ids) remaps.push_back({id, 1, 1});
  return MakeRemaps(remaps);
}

inline std::string MakeFileLocks(const std::vector<FileLock>& locks) {
  std::vector<std::string> records;
  for (const FileLock& lock : locks) {
    pb::FileLock entry;
    entry.set_kind(lock.kind == FileLock::Kind::kPosix ? 1 : lock.kind == FileLock::Kind::kFlock ? 2 : 4);
    entry.set_type(lock.exclusive ? F_WRLCK : F_RDLCK);
    entry.set_pid(lock.pid);
    entry.set_fd(lock.fd);
    entry.set_start(lock.start);
    entry.set_length(lock.length);
    records.push_back(entry.SerializeAsString());
  }
  return MakeImage(0x54323616, records);
}

// ids-PID.img of a process whose descriptors are in fdinfo-`descriptors_id`.img.
inline std::string MakeIds(uint32_t descriptors_id) {
  pb::IdsOfTask ids;
  ids.set_files_id(descriptors_id);
  return MakeImage(0x54432030, {ids.SerializeAsString()});
}

// `files`: ids of regular files, by descriptor.
inline std::string MakeDescriptors(const std::map<int, uint32_t>& files) {
  std::vector<std::string> records;
  for (auto [fd, file_id] : files) {
    pb::Descriptor entry;
    entry.set_fd(static_cast<uint32_t>(fd));
    entry.set_file_id(file_id);
    entry.set_type(1);
    records.push_back(entry.SerializeAsString());
  }
  return MakeImage(0x56213732, records);
}

}  // namespace rekindle::criu
