# Installs a library under a name that tells what is in it, STEM-ID.EXTENSION, with STEM.EXTENSION a link to it.
# Programs load it by the link and have the file itself mapped. So an image of one finds the library that it had when
# another version has been installed since: nothing here removes a file, only the link changes.
#   cmake -DFILE=… -DFOLDER=… [-DSTRIP=program] -P install_by_content.cmake
get_filename_component(name "${FILE}" NAME)
get_filename_component(stem "${FILE}" NAME_WLE)
get_filename_component(extension "${FILE}" LAST_EXT)
set(new "${FOLDER}/.${name}.new")
file(MAKE_DIRECTORY "${FOLDER}")
file(INSTALL "${FILE}" DESTINATION "${FOLDER}" RENAME ".${name}.new" MESSAGE_NEVER
  PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
if(STRIP)
  execute_process(COMMAND "${STRIP}" --strip-unneeded "${new}" COMMAND_ERROR_IS_FATAL ANY)
endif()
file(SHA256 "${new}" id)
string(SUBSTRING "${id}" 0 16 id)
set(own_name "${stem}-${id}${extension}")
if(EXISTS "${FOLDER}/${own_name}")
  file(REMOVE "${new}")
else()
  file(RENAME "${new}" "${FOLDER}/${own_name}")
endif()
# At once: whoever loads it meanwhile finds the old one or the new one.
file(CREATE_LINK "${own_name}" "${new}" SYMBOLIC)
file(RENAME "${new}" "${FOLDER}/${name}")
# For install_manifest.txt, by which all of it can be removed. Without the folder of packages, as CMake writes it.
string(LENGTH "$ENV{DESTDIR}" staged)
string(SUBSTRING "${FOLDER}" ${staged} -1 installed)
list(REMOVE_ITEM CMAKE_INSTALL_MANIFEST_FILES "${installed}/.${name}.new")
list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${installed}/${name}" "${installed}/${own_name}")
message(STATUS "Installed: ${FOLDER}/${name} -> ${own_name}")
