# For builds with -DCMAKE_UNITY_BUILD=ON, as scripts/build.sh makes them: several files compiled as one. A name of a
# file's own that a neighbour has too, if only as a local one (-Wshadow), fails such a build; scripts/build.sh builds
# its target file by file then, and says so. If both are the same, it belongs in a header of theirs; else one of them
# has to say more exactly what it is for. What can't share at all, such as a file that defines a macro for headers
# that its neighbours include too, gets SKIP_UNITY_BUILD_INCLUSION.
#
# Many at a time: headers are most of what is compiled, and inline functions of theirs once for each compilation.
set(REKINDLE_UNITY_FILES 60 CACHE STRING "As many files at most are compiled as one in a unity build")
set(CMAKE_UNITY_BUILD_BATCH_SIZE ${REKINDLE_UNITY_FILES})

# rk_share_equally(TARGET SOURCES...)  no file is left over for a last compilation that has hardly more than headers.
function(rk_share_equally target)
  list(LENGTH ARGN _files)
  math(EXPR _parts "(${_files} + ${REKINDLE_UNITY_FILES} - 1) / ${REKINDLE_UNITY_FILES}")
  math(EXPR _each "(${_files} + ${_parts} - 1) / ${_parts}")
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE ${_each})
endfunction()

set(REKINDLE_FILE_BY_FILE "" CACHE STRING "Targets whose files are compiled one by one all the same")

# The compiler spends part of its time on its own garbage, of which there is more in several files: let it wait.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=500000)
endif()

function(rk_build_file_by_file)
  foreach(target IN LISTS REKINDLE_FILE_BY_FILE)
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  endforeach()
endfunction()
